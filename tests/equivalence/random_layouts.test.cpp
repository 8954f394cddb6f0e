// Everything that a layout may vary, drawn at random: what a rank touches and sends is what was planned, and the bits
// are those of the plain loop.
#include <map>
#include <random>
#include <set>

#include "equivalence/course.h"
#include "program/traffic.h"
#include "schedules/schedule.h"
#include "support/temporary_folder.h"

namespace shardpipe {
namespace {

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  template <typename T>
  T of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }
  RunConfig config(const std::string& folder) {
    ModelConfig model = of({0, 1}) == 0 ? tiny_gpt2() : tiny_llama();
    model.tied_embeddings = of({true, false});
    if (model.family == Family::Gpt2) model.dropout = of({0.0, 0.25});
    Layout layout = tiny_layout(of<int64_t>({1, 2, 3, 4}), of<int64_t>({1, 2, 3, 4}), of({0, 1, 2, 3}),
                                of<int64_t>({1, 2, 3, 5}), of({ReduceEvery::Micro, ReduceEvery::Step}));
    const std::vector<std::string> schedules = schedule_names();
    do layout.schedule = schedules[random_() % schedules.size()];
    while (layout.chunks() > model.layers + 2);
    if (of({0, 1, 2}) == 0) {
      const int least = of({0, 1});  // tied uses both shard or neither
      for (int64_t rank = 0; rank < layout.pp; ++rank)
        layout.zero_of_ranks.push_back(least == 0 && model.tied_embeddings ? 0 : of({1, 2, 3}));
    }
    if (layout.highest_zero() > 0 && layout.dp > 1)
      layout.replicate = layout.dp == 4 ? of<int64_t>({1, 2, 4}) : of<int64_t>({1, layout.dp});
    layout.precision = of({DType::Float32, DType::BFloat16, DType::Float16});
    layout.recompute = of<const char*>({"none", "full", "selective", "every:2", "every:3", "blocks:0,2-3,5"});
    layout.reduce_dtype = of({DType::Float32, DType::Float32, DType::BFloat16});
    layout.reproducible = layout.reduce_dtype == DType::Float32 && of({true, false, false});
    layout.reshard_after_forward = of({true, false});
    if (of({0, 1, 2}) == 0)
      for (int64_t rank = 0; rank < layout.pp; ++rank) layout.reshard_of_ranks.push_back(of({true, false}));
    const int64_t size = of<int64_t>({1, 2});
    layout.micro_batch_size *= size;
    layout.global_batch_size *= size;
    layout.offload = of<const char*>(
        {"none", "none", "optimizer", "params", "activations", "optimizer,params", "optimizer,params,activations"});
    layout.offload_piece = of<int64_t>({100, 1000, 1 << 20});
    RunConfig config = tiny_run(model, layout);
    if (layout.offload != "none" && of({true, false})) config.offload_to = "nvme:" + folder;
    config.steps = 2;
    config.optimizer.optimizer = of({OptimizerKind::AdamW, OptimizerKind::AdamW, OptimizerKind::Sgd});
    return config;
  }

 private:
  std::mt19937 random_;
};

// All that decides bits.
std::string bits_of(const RunConfig& config) {
  const Layout& layout = config.layout;
  if (layout.reproducible)
    return fmt::format("exactly {} {} {} {} x {} {} {}", config.model.name, config.model.tied_embeddings,
                       config.model.dropout, layout.dp * layout.micro_batches(), layout.micro_batch_size,
                       to_string(layout.precision), static_cast<int>(config.optimizer.optimizer));
  return fmt::format("{} {} {} dp {} {} x {} {} {} {} {}", config.model.name, config.model.tied_embeddings,
                     config.model.dropout, layout.dp, layout.micro_batches(), layout.micro_batch_size,
                     static_cast<int>(layout.reduce_every), to_string(layout.reduce_dtype), to_string(layout.precision),
                     static_cast<int>(config.optimizer.optimizer));
}

// What a run puts into a rank's store before its first step, and reads of it after the last, for the digest: of each
// parameter group its fp32 values.
std::pair<uint64_t, uint64_t> at_the_ends(const RankProgram& rank) {
  uint64_t first = 0, last = 0;
  std::set<uint16_t> with_masters;
  for (const Buffer& buffer : rank.buffers)
    if (buffer.role == Role::Master && buffer.resident) with_masters.insert(buffer.index);
  for (const Buffer& buffer : rank.buffers) {
    const bool parameters = buffer.role == Role::Parameters || buffer.role == Role::Shard;
    if (!buffer.stored || !buffer.resident || !(parameters || buffer.role == Role::Master)) continue;
    first += buffer.bytes;
    if (!parameters || !with_masters.contains(buffer.index)) last += buffer.bytes;
  }
  return {first, last};
}

TEST(RandomLayouts, TouchAndSendWhatIsPlannedAndHaveThePlainBits) {
  const TemporaryFolder folder;
  std::map<std::string, Course> plain;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    const RunConfig config = Draw(seed).config(folder.path());
    const std::string name = fmt::format("seed {}: {}", seed, describe(config));
    const Model model = make_model(config.model);
    ASSERT_EQ(problems_of(config.layout, model), std::vector<std::string>{}) << name;
    const Step step = make_step(model, config.layout, optimizer_states_per_element(config.optimizer.optimizer));
    const Course course = train(config, step, random_samples(config.seed, config.model.vocab_size));
    const auto [expected, is_new] = plain.try_emplace(bits_of(config));
    if (is_new) expected->second = train_plain(config);
    ASSERT_TRUE(same_bits(course, expected->second)) << name;  // and that the peak is the planned one
    uint64_t fetched = 0, offloaded = 0;
    for (size_t rank = 0; rank < course.result.wire_bytes.size(); ++rank) {
      const auto dp = static_cast<uint64_t>(config.layout.dp);
      const Traffic of_step =
          traffic(step.training, static_cast<uint16_t>(rank / dp), dp, static_cast<uint64_t>(config.layout.replicate));
      ASSERT_EQ(course.result.wire_bytes[rank].total(), 2 * of_step.total()) << name << ", rank " << rank;
      const RankProgram& program = step.training.by_pipeline_rank[rank / dp];
      ASSERT_EQ(course.result.store_bytes[rank], program.store_bytes) << name << ", rank " << rank;
      const auto [first, last] = at_the_ends(program);
      fetched += 2 * of_step.fetched + last;
      offloaded += 2 * of_step.offloaded + first;
    }
    ASSERT_EQ(course.result.fetched_bytes, fetched) << name;
    ASSERT_EQ(course.result.offloaded_bytes, offloaded) << name;
  }
}

}  // namespace
}  // namespace shardpipe
