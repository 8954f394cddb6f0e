// Published bytes, held exactly: the paper's formula gives the figure that it prints, and what our own programs hold is
// that formula and the terms named here, each of which docs/published.md explains.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "program/compile.h"
#include "program/lifetime.h"
#include "program/memory.h"
#include "support/csv.h"
#include "test_paths.h"

namespace shardpipe {
namespace {

constexpr double gib = 1073741824.0;

std::vector<CsvRow> table(const char* name) {
  return read_csv(fmt::format("{}/plan/published/{}.csv", TEST_DATA_DIR, name));
}

Model gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t sequence = 2048, int64_t vocabulary = 51200) {
  ModelConfig config;
  config.name = "published";
  config.layers = layers, config.hidden = hidden, config.heads = config.kv_heads = heads, config.ffn = 4 * hidden;
  config.vocab_size = vocabulary, config.seq_len = sequence;
  return make_model(config);
}
Model gpt(const CsvRow& row) { return gpt(row.whole("layers"), row.whole("hidden"), row.whole("heads")); }

// -- parameters: arXiv:2104.04473, Table 1 --

TEST(PublishedMemory, ParametersAreEquation2AndTheLastNorm) {
  for (const CsvRow& row : table("ptdp_table1")) {
    const auto l = row.whole("layers"), h = row.whole("hidden");
    const int64_t equation_2 = 12 * l * h * h + 13 * l * h + (51200 + 2048) * h;
    const int64_t last_norm = 2 * h;  // gain and bias before the head, which the equation leaves out
    EXPECT_NEAR(static_cast<double>(equation_2) / 1e9, row.number("params_B"), row.rounding("params_B"));
    EXPECT_EQ(static_cast<int64_t>(gpt(row).parameters()), equation_2 + last_norm);
  }
}

TEST(PublishedMemory, ParametersOfTable2AreTheModelsOfItsLines) {
  for (const CsvRow& row : table("ptdp_table2"))
    EXPECT_NEAR(static_cast<double>(gpt(row).parameters()) / 1e9, row.number("params_B"), row.rounding("params_B"));
}

// -- model states: arXiv:1910.02054, Table 1 --

// Bytes of one parameter: of what every device holds whole, and of what is divided by N.
struct StateBytes {
  uint64_t whole, sharded;
  bool operator==(const StateBytes&) const = default;
};
constexpr StateBytes paper_states[] = {{16, 0}, {4, 12}, {2, 14}, {0, 16}};  // by ZeRO stage
// Gradients are summed in fp32, where the paper keeps them in fp16: 2 bytes more, sharded where gradients are.
constexpr StateBytes fp32_gradients[] = {{2, 0}, {2, 0}, {0, 2}, {0, 2}};
// A table that embedding and head share has a gradient of each of them: 4 bytes more for each of its parameters.
constexpr StateBytes second_gradient_of_tied[] = {{4, 0}, {4, 0}, {0, 4}, {0, 4}};

TEST(PublishedMemory, ModelStatesAreZerosTableAndFp32Gradients) {
  const Model models[] = {gpt(36, 4096, 32), gpt(2, 64, 4, 32, 67), gpt(3, 60, 3, 10, 101)};
  for (const CsvRow& row : table("zero_table1")) {
    const auto n = row.whole("n");
    for (const int zero : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << row.text("parameters_B") << " B, N " << n << ", stage " << zero);
      const std::string column = fmt::format("stage{}", zero);
      const StateBytes& paper = paper_states[zero];
      EXPECT_NEAR(row.number("parameters_B") *
                      (static_cast<double>(paper.whole) + static_cast<double>(paper.sharded) / static_cast<double>(n)),
                  row.number(column), row.rounding(column));
      for (const Model& model : models) {
        Layout layout{.dp = n, .zero = zero};
        layout.global_batch_size = n;
        layout.reduce_every = default_reduce_every(zero);
        layout.precision = DType::BFloat16;
        ASSERT_TRUE(problems_of(layout, model).empty());
        const Program program = compile(step_shape(model, layout, 2));
        const RankProgram& rank = program.by_pipeline_rank[0];
        const RankMemory held = memory(rank);
        uint64_t of_all = 0;
        for (int64_t replica = 0; replica < n; ++replica) {
          const RankPadding empty = padding(rank, model, static_cast<uint64_t>(n), static_cast<uint64_t>(replica));
          of_all +=
              held.parameters + held.gradients + held.optimizer - empty.parameters - empty.gradients - empty.optimizer;
        }
        const auto of_devices = [&](const StateBytes& bytes) {
          return bytes.whole * static_cast<uint64_t>(n) + bytes.sharded;
        };
        const auto tied = static_cast<uint64_t>(model.config.vocab_size * model.config.hidden);
        EXPECT_EQ(of_all, model.parameters() * (of_devices(paper) + of_devices(fp32_gradients[zero])) +
                              tied * of_devices(second_gradient_of_tied[zero]));
      }
    }
  }
}

// -- activations of a layer: arXiv:2205.05198, Table 2 --

struct Shape {
  int64_t s, b, h, a;
  int64_t sbh() const { return s * b * h; }
};
// Of bytes a layer keeps, what is not the same here, and why. Selective recomputation makes again all that attention
// gave, where the paper keeps its output. Full recomputation keeps the input alone, as the paper says.
struct Differences {
  int64_t scores = 0;           // attention never stores them: 5 a s² b
  int64_t log_sum_exp = 0;      // but for the backward a number a head and query: 4 a s b
  int64_t attention = 0;        // its output, made again: 2 sbh
  int64_t norms = 0;            // outputs of two norms, made again: 4 sbh
  int64_t gelu = 0;             // its output, made again: 8 sbh
  int64_t masks = 0;            // two of dropout: made again from their seed: 2 sbh
  int64_t norm_statistics = 0;  // mean and deviation of two norms, fp32, which the paper leaves out: 16 s b
  int64_t sum() const { return scores + log_sum_exp + attention + norms + gelu + masks + norm_statistics; }
};
Differences differences(const std::string& recompute, Shape shape) {
  if (recompute == "full") return {};
  Differences d{.norms = -4 * shape.sbh(),
                .gelu = -8 * shape.sbh(),
                .masks = -2 * shape.sbh(),
                .norm_statistics = 16 * shape.s * shape.b};
  if (recompute == "selective") {
    d.attention = -2 * shape.sbh();
  } else {
    d.scores = -5 * shape.a * shape.s * shape.s * shape.b;
    d.log_sum_exp = 4 * shape.a * shape.s * shape.b;
  }
  return d;
}
int64_t paper_bytes_of_layer(const CsvRow& row, Shape shape, int64_t t) {
  return shape.sbh() * row.whole("whole") +
         (shape.sbh() * row.whole("split") + row.whole("scores") * shape.a * shape.s * shape.s * shape.b) / t;
}
CsvRow formula(const std::string& name) {
  for (const CsvRow& row : table("activations_table2"))
    if (row.text("case") == name) return row;
  throw std::runtime_error("no case " + name);
}

// Every shape whose pieces fill whole cache lines, so that nothing is padded. One device: t is 1, where the cases of
// tensor and sequence parallelism are those without.
TEST(PublishedMemory, ALayerKeepsThePapersBytesAndTheDifferences) {
  for (const CsvRow& row : table("activations_table2"))
    for (const Shape shape : {Shape{2048, 1, 12288, 96},
                              {2048, 4, 6144, 64},
                              {2048, 1, 20480, 128},
                              {64, 3, 96, 6},
                              {1024, 2, 1600, 25},
                              {16, 1, 64, 1},
                              {8192, 5, 128, 2}})
      for (const double dropout : {0.0, 0.1}) {
        SCOPED_TRACE(testing::Message() << row.text("case") << " s " << shape.s << " b " << shape.b << " h "
                                        << shape.h);
        ModelConfig config = gpt(1, shape.h, shape.a, shape.s).config;
        config.dropout = dropout;
        const Model model = make_model(config);
        const MicroBatchShape micro_batch{shape.b, shape.s, DType::BFloat16};
        const std::string& rule = row.text("recompute");
        const BlockBytes bytes = block_bytes(model, model.blocks[1], micro_batch, recompute_of_blocks(rule, model)[1]);
        EXPECT_EQ(static_cast<int64_t>(bytes.saved + activation_bytes(model, micro_batch)),
                  paper_bytes_of_layer(row, shape, 1) + differences(rule, shape).sum());
      }
}

// -- activations and states of the models of 22B to 1T: arXiv:2205.05198, Figure 1 --

// Of the first pipeline rank, the most that is kept at once between forward and backward: what layers save, and their
// inputs.
uint64_t kept_activations(const RankProgram& rank, const std::vector<uint16_t>& layers) {
  std::vector<int64_t> change(rank.actions.size() + 1);
  const std::vector<Lifetime> lifetimes = buffer_lifetimes(rank);
  for (size_t b = 0; b < rank.buffers.size(); ++b) {
    const Buffer& buffer = rank.buffers[b];
    if (buffer.role != Role::Saved && buffer.role != Role::Activation) continue;
    if (!lifetimes[b].used() || std::ranges::find(layers, buffer.index) == layers.end()) continue;
    change[lifetimes[b].first] += static_cast<int64_t>(buffer.bytes);
    change[lifetimes[b].last + 1] -= static_cast<int64_t>(buffer.bytes);
  }
  int64_t now = 0, most = 0;
  for (const int64_t step : change) most = std::max(most, now += step);
  return static_cast<uint64_t>(most);
}

TEST(PublishedMemory, FigureOneIsTheFormulaToItsLastDigit) {
  for (const CsvRow& row : table("activations_table5")) {
    const Shape shape{2048, row.whole("mbs"), row.whole("hidden"), row.whole("heads")};
    const auto p = row.number("pp"), v = row.number("v"), l = row.number("layers");
    const double in_flight = v > 1 ? 1 + (p - 1) / (p * v) : 1;
    const auto printed = [&](const char* name, const char* column) {
      const double bytes = static_cast<double>(paper_bytes_of_layer(formula(name), shape, row.whole("tp")));
      EXPECT_NEAR(bytes * l * in_flight / gib, row.number(column), row.rounding(column)) << row.text("model");
    };
    printed("tensor", "activations_GiB");
    printed("tensor and sequence and selective", "activations_selective_GiB");
    // 18 bytes a parameter of the layers' matrices: 2 + 4 + 12.
    const double matrices = 12 * l * row.number("hidden") * row.number("hidden");
    EXPECT_NEAR(18 * matrices / row.number("gpus") / gib, row.number("states_GiB"), row.rounding("states_GiB"));
  }
}

TEST(PublishedMemory, FigureSevenIsTheFormulaToWhatAPlotShows) {
  for (const CsvRow& row : table("activations_figure7")) {
    const Shape shape{2048, 1, row.whole("hidden"), row.whole("heads")};
    const auto bytes = [&](const char* name) {
      return static_cast<double>(paper_bytes_of_layer(formula(name), shape, 8));
    };
    const auto percent = [&](const char* name) { return 100 * bytes(name) / bytes("tensor"); };
    EXPECT_NEAR(percent("tensor and sequence"), row.number("sequence"), 0.2);
    EXPECT_NEAR(percent("tensor and selective"), row.number("selective"), 0.2);
    EXPECT_NEAR(percent("tensor and sequence and selective"), row.number("both"), 0.2);
    EXPECT_NEAR(percent("full"), row.number("full"), 0.2);
  }
}

// The same models compiled, with as many micro-batches as fill the pipeline. Eight devices of a tensor-parallel group
// hold together what one pipeline rank holds here; with sequence parallelism each has an eighth of all of it.
TEST(PublishedMemory, CompiledStepsOf22BTo1THoldTheFormulaAndTheDifferences) {
  for (const CsvRow& row : table("activations_table5"))
    for (const char* recompute : {"none", "selective"}) {
      SCOPED_TRACE(testing::Message() << row.text("model") << " " << recompute);
      const Shape shape{2048, row.whole("mbs"), row.whole("hidden"), row.whole("heads")};
      const auto p = row.whole("pp"), v = row.whole("v"), l = row.whole("layers");
      const Model model = gpt(row);
      Layout layout{.pp = p};
      layout.schedule = v > 1 ? "interleaved" : "1f1b";
      layout.chunks_per_rank = v;
      layout.stages.assign(static_cast<size_t>(p * v), l / (p * v));
      ++layout.stages.front(), ++layout.stages.back();
      layout.micro_batch_size = shape.b;
      layout.global_batch_size = shape.b * 2 * p;
      layout.precision = DType::BFloat16;
      layout.recompute = recompute;
      ASSERT_TRUE(problems_of(layout, model).empty());
      const StepShape step = step_shape(model, layout, 2);
      const Program program = compile(step);
      std::vector<uint16_t> layers;
      for (uint16_t b = 0; b < model.blocks.size(); ++b)
        if (model.blocks[b].kind == BlockKind::Layer) layers.push_back(b);
      const int64_t of_layer = paper_bytes_of_layer(formula("no parallelism"), shape, 1) -
                               (recompute == std::string("selective") ? 5 * shape.a * shape.s * shape.s * shape.b : 0) +
                               differences(recompute, shape).sum();
      // Of one layer's micro-batches, as many as are in flight: l·(1 + (p-1)/(pv)) = (l/(pv))·(pv + p - 1).
      const int64_t in_flight = l / (p * v) * (v > 1 ? p * v + p - 1 : p);
      const int64_t on_its_way = p > 1 ? 2 * shape.sbh() : 0;  // what the last forward sends to the next rank
      EXPECT_EQ(static_cast<int64_t>(kept_activations(program.by_pipeline_rank[0], layers)),
                of_layer * in_flight + on_its_way);

      uint64_t states = 0;
      for (const RankProgram& rank : program.by_pipeline_rank) {
        const RankMemory held = memory(rank);
        states += held.parameters + held.gradients + held.optimizer;
      }
      const auto h = static_cast<uint64_t>(shape.h), layer_count = static_cast<uint64_t>(l);
      const uint64_t matrices = 12 * layer_count * h * h, biases_and_norms = 13 * layer_count * h + 2 * h;
      const uint64_t embeddings = (51200 + 2048) * h;
      // The last rank has a copy of the embedding's table for the head; on one rank they share it, but for its
      // gradient.
      const uint64_t of_the_head = (p > 1 ? 18 : 4) * 51200 * h;
      EXPECT_EQ(states, 18 * (matrices + biases_and_norms + embeddings) + of_the_head);
    }
}

}  // namespace
}  // namespace shardpipe
