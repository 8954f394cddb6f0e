// Published times as layouts that can be priced: the rows of tests/plan/published/*.csv, each with the device and the
// few shares that its software reaches of it.
#pragma once
#include <fmt/format.h>

#include <set>
#include <sstream>

#include "plan/search.h"
#include "program/simulate.h"
#include "support/csv.h"

namespace shardpipe {

// What a software reaches of a device. One line of fitted.csv.
struct Reached {
  std::string software{}, device{};
  double products = 1;              // of the shares that Calculon gives for products of an A100
  double memory = 0.9;              // of the memory's speed, by the bytes that work.h counts
  double score_bytes = 0;           // see Device
  double network = 0.9;             // of a device's link to other nodes
  std::set<std::string> is_free{};  // which of these are fitted; the others are another line's, or have no effect
};

struct PublishedTime {
  std::string table{}, name{};
  std::string software{}, device{};
  std::string left_out{};  // why it is not predicted; empty: it is
  Model model{};
  Layout layout{};
  uint64_t tensor_parallel = 1;
  bool sequence_parallel = false;
  double seconds = 0;   // of a step, as published
  bool fitted = false;  // every third row of a table, beginning with its third: what the parameters are fitted on
};

inline Model gpt_model(int64_t layers, int64_t hidden, int64_t heads, int64_t sequence, int64_t vocabulary) {
  ModelConfig config;
  config.name = "published";
  config.layers = layers, config.hidden = hidden, config.heads = config.kv_heads = heads, config.ffn = 4 * hidden;
  config.vocab_size = vocabulary, config.seq_len = sequence;
  return make_model(config);
}

// llama-8b and llama-70b at 8192 tokens, Llama 2 and Code Llama (Touvron et al., arXiv:2307.09288; Rozière et al.,
// arXiv:2308.12950) at 4096, MPT (mosaicml/llm-foundry) at its own.
inline Model published_model(const std::string& name) {
  const auto llama2 = [](int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t ffn) {
    ModelConfig config = model_preset("llama-8b");
    config.layers = layers, config.hidden = hidden, config.heads = heads, config.kv_heads = kv_heads, config.ffn = ffn;
    config.vocab_size = 32000, config.seq_len = 4096;
    return make_model(config);
  };
  if (name == "llama2-7b") return llama2(32, 4096, 32, 32, 11008);
  if (name == "llama2-13b") return llama2(40, 5120, 40, 40, 13824);
  if (name == "llama2-34b") return llama2(48, 8192, 64, 8, 22016);
  if (name == "mpt-125m") return gpt_model(12, 768, 12, 1024, 50368);
  if (name == "mpt-1b") return gpt_model(24, 2048, 16, 2048, 50368);
  if (name == "mpt-7b") return gpt_model(32, 4096, 32, 2048, 50368);
  if (name == "mpt-13b") return gpt_model(40, 5120, 40, 2048, 50368);
  if (name == "mpt-30b") return gpt_model(48, 7168, 56, 2048, 50368);
  if (name == "mpt-70b") return gpt_model(80, 8192, 64, 2048, 50368);
  return make_model(model_preset(name));
}

// As many layers a chunk, and the embedding and the head besides.
inline Layout published_layout(const Model& model, int64_t pp, int64_t dp, int64_t v) {
  Layout layout{.pp = pp, .dp = dp};
  if (v > 1) layout.schedule = "interleaved";
  layout.chunks_per_rank = v;
  layout.stages.assign(static_cast<size_t>(pp * v), model.config.layers / (pp * v));
  ++layout.stages.front(), ++layout.stages.back();
  layout.precision = DType::BFloat16;
  return layout;
}

// Operations behind the TFLOP/s of arXiv:2104.04473: its equation 3, with the forward that is computed again.
inline double operations_of_equation_3(const Model& model, int64_t sequences) {
  const auto l = static_cast<double>(model.config.layers), h = static_cast<double>(model.config.hidden),
             s = static_cast<double>(model.config.seq_len), v = static_cast<double>(model.config.vocab_size);
  return 96 * static_cast<double>(sequences) * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
}

inline std::vector<PublishedTime> published_times(const std::string& folder) {
  std::vector<PublishedTime> all;
  const auto rows = [&](const char* table, const auto& add) {
    const size_t first = all.size();
    for (const CsvRow& row : read_csv(fmt::format("{}/{}.csv", folder, table))) add(row);
    for (size_t i = first; i < all.size(); ++i) {
      all[i].table = table;
      all[i].fitted = (i - first) % 3 == 2 && all[i].left_out.empty();
    }
  };
  // Of Megatron-LM: layers, hidden, heads.
  const auto megatron = [](const CsvRow& row, int64_t sequence, int64_t vocabulary, int64_t v, int64_t dp) {
    PublishedTime time{
        .model = gpt_model(row.whole("layers"), row.whole("hidden"), row.whole("heads"), sequence, vocabulary)};
    time.layout = published_layout(time.model, row.whole("pp"), dp, v);
    time.layout.micro_batch_size = 1;
    time.tensor_parallel = static_cast<uint64_t>(row.whole("tp"));
    return time;
  };
  for (const char* table : {"ptdp_table1", "ptdp_table2"})
    rows(table, [&](const CsvRow& row) {
      PublishedTime time = megatron(row, 2048, 51200, row.whole("v"), row.whole("dp"));
      const bool sharded = table == std::string("ptdp_table2") && row.text("scheme") == "ZeRO-3";
      time.name = fmt::format("{}{} B on {} A100", sharded ? "ZeRO-3 " : "", row.text("params_B"), row.text("gpus"));
      time.software = sharded ? "deepspeed" : "megatron-2021", time.device = "a100-80g";
      time.layout.micro_batch_size = row.whole("mbs");
      time.layout.global_batch_size = row.whole("gbs");
      time.layout.recompute = "full";
      time.layout.zero = sharded ? 3 : 0;
      time.layout.reduce_every = default_reduce_every(time.layout.zero);
      time.layout.reduce_dtype = DType::BFloat16;
      time.seconds = operations_of_equation_3(time.model, row.whole("gbs")) /
                     (row.number("gpus") * row.number("tflops_gpu") * 1e12);
      all.push_back(std::move(time));
    });
  rows("activations_table5", [&](const CsvRow& row) {
    for (const bool selective : {false, true}) {
      PublishedTime time = megatron(row, 2048, 51200, row.whole("v"), 1);
      time.name = fmt::format("{}, {}", row.text("model"), selective ? "selective" : "full");
      time.software = "megatron-2021", time.device = "a100-80g";
      time.layout.micro_batch_size = row.whole("mbs");
      time.layout.global_batch_size = row.whole("gbs");
      time.layout.recompute = selective ? "selective" : "full";
      time.sequence_parallel = selective;
      time.seconds = row.number(selective ? "seconds_selective" : "seconds_full");
      all.push_back(std::move(time));
    }
  });
  rows("megatron_core", [&](const CsvRow& row) {
    PublishedTime time = megatron(row, 4096, 131072, row.whole("layers") / row.whole("pp"), row.whole("dp"));
    if (row.whole("pp") == 1) time.layout.chunks_per_rank = 1, time.layout.schedule = "1f1b", time.layout.stages = {};
    if (row.whole("pp") == 1) time.layout.micro_batch_size = 4;
    time.name = row.text("name");
    time.software = "megatron-core", time.device = "h100", time.left_out = row.text("left_out");
    time.sequence_parallel = true;
    if (row.has("gbs")) time.layout.global_batch_size = row.whole("gbs");
    time.layout.zero = 1;
    if (row.has("seconds")) time.seconds = row.number("seconds");
    all.push_back(std::move(time));
  });
  for (const char* table : {"torchtitan", "fsdp"})
    rows(table, [&](const CsvRow& row) {
      PublishedTime time{.model = published_model(row.text("model"))};
      time.name = row.text("name");
      time.software = row.text("software"), time.device = row.text("device"), time.left_out = row.text("left_out");
      time.tensor_parallel = static_cast<uint64_t>(row.whole("tp")), time.sequence_parallel = true;
      time.layout = published_layout(time.model, 1, row.whole("dp"), 1);
      time.layout.replicate = row.whole("copies");
      time.layout.zero = static_cast<int>(row.whole("zero"));
      time.layout.reduce_every = default_reduce_every(time.layout.zero);
      time.layout.micro_batch_size = row.whole("mbs");
      time.layout.global_batch_size = row.whole("mbs") * row.whole("dp");
      time.layout.recompute = row.text("recompute");
      const double devices = row.number("dp") * row.number("tp");
      time.seconds = static_cast<double>(time.layout.global_batch_size * time.model.config.seq_len) /
                     (devices * row.number("tokens_device"));
      all.push_back(std::move(time));
    });
  return all;
}

// The device's data sheet (published/hardware.csv) and what the software reaches of it.
inline Cluster cluster_of(const PublishedTime& time, const Reached& reached, const std::string& folder) {
  Device device = device_preset(time.device);
  for (const CsvRow& row : read_csv(folder + "/hardware.csv")) {
    if (row.text("device") != time.device) continue;
    const double faster = row.number("peak_tflops") / 312;
    device.products = {{0.25e9, 0.1}, {1e9, 0.6}, {16e9, 0.9}, {128e9, 0.97}};
    for (Efficiency& point : device.products) point.flops *= faster, point.share *= reached.products;
    device.memory_bytes_per_second = row.number("memory_GB_s") * 1e9 * reached.memory;
    device.link = {10e-6, 1 / (row.number("link_GB_s") * 1e9 * 0.65)};
    device.score_bytes = reached.score_bytes;
    Cluster cluster{.device = device};
    cluster.between = {20e-6, 1 / (row.number("network_Gbit_s") * 1e9 / 8 * reached.network)};
    return device_group(cluster, time.tensor_parallel, time.sequence_parallel);
  }
  throw std::runtime_error("hardware.csv has no " + time.device);
}

inline std::vector<Reached> read_reached(const std::string& folder) {
  std::vector<Reached> all;
  for (const CsvRow& row : read_csv(folder + "/fitted.csv")) {
    all.push_back({row.text("software"), row.text("device"), row.number("products"), row.number("memory"),
                   row.number("score_bytes"), row.number("network")});
    std::stringstream names(row.text("free"));
    for (std::string name; names >> name;) all.back().is_free.insert(name);
  }
  return all;
}

// A row's program, compiled once for all figures that it is priced with. Sends do not wait for their receives, as in
// those softwares; ours do (see docs/published.md).
class PublishedStep {
 public:
  explicit PublishedStep(const PublishedTime& time)
      : time_(time), shape_(step_shape(time.model, time.layout, 2)), program_(compile(shape_)) {}
  static constexpr ChannelModel buffered{ChannelLanes::AsProgrammed, unlimited_capacity};
  double seconds(const Reached& reached, const std::string& folder, const ChannelModel& channels = buffered) const {
    const CostModel costs = costs_on(cluster_of(time_, reached, folder), shape_, program_);
    return step_figures(program_, simulate(program_, costs, channels)).step_seconds;
  }

 private:
  const PublishedTime& time_;  // outlives the step
  StepShape shape_;
  Program program_;
};

}  // namespace shardpipe
