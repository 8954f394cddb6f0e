// What ranks sent and touched in a run, counted, against the program's figures and against closed forms.
#include "equivalence/course.h"
#include "program/traffic.h"

namespace shardpipe {
namespace {

struct Counted {
  RunConfig config;
  std::unique_ptr<const Model> model;  // its address is in `step`
  Step step;
  TrainResult result;
};

Counted run_counted(const ModelConfig& model_config, const Layout& layout, int64_t held_out_samples = 0) {
  Counted counted;
  counted.config = tiny_run(model_config, layout);
  counted.config.steps = 3;
  counted.model = std::make_unique<const Model>(make_model(model_config));
  counted.step = make_step(*counted.model, layout, 2);
  const SampleSource samples = random_samples(7, model_config.vocab_size);
  counted.result = run_training(counted.config, counted.step,
                                {.train = samples, .held_out = samples, .held_out_samples = held_out_samples});
  return counted;
}

WireBytes times(uint64_t steps, const Traffic& of_step) {
  return {.send = steps * of_step.send,
          .all_gather = steps * of_step.all_gather,
          .reduce_scatter = steps * of_step.reduce_scatter,
          .all_reduce = steps * (of_step.all_reduce + of_step.tied),
          .scalar_all_reduce = steps * of_step.scalars,
          .broadcast = 0};
}

std::string in_words(const WireBytes& bytes) {
  return fmt::format("send {}, all-gather {}, reduce-scatter {}, all-reduce {}, scalars {}, broadcast {}", bytes.send,
                     bytes.all_gather, bytes.reduce_scatter, bytes.all_reduce, bytes.scalar_all_reduce,
                     bytes.broadcast);
}

void for_each_layout(const std::function<void(const Layout&)>& visit) {
  for (const int64_t pp : {1, 2, 3})
    for (const int64_t dp : {1, 2, 3})
      for (const int zero : {0, 1, 2, 3})
        for (const ReduceEvery reduce_every : {ReduceEvery::Step, ReduceEvery::Micro})
          for (const bool reshard : {true, false}) {
            if (zero < 3 && !reshard) continue;  // says nothing there
            Layout layout = tiny_layout(pp, dp, zero, 2, reduce_every);
            layout.reshard_after_forward = reshard;
            // By which nothing on the wire may change: a backward shares the gather of what it computes again.
            for (const char* rule : {"none", "full", "selective"}) {
              layout.recompute = rule;
              visit(layout);
            }
          }
}

// An odd vocabulary: no parameter group divides by the replicas.
ModelConfig odd(ModelConfig model) {
  model.vocab_size = 67;
  model.hidden = 12;
  model.heads = model.kv_heads = 2;
  model.ffn = 31;
  return model;
}

TEST(CountedBytes, OfEachRankAreTheProgramsTimesTheSteps) {
  for (const ModelConfig& model : {odd(tiny_gpt2()), odd(tiny_llama())})
    for_each_layout([&](const Layout& layout) {
      const Counted run = run_counted(model, layout);
      for (size_t r = 0; r < run.result.wire_bytes.size(); ++r) {
        const WireBytes expected =
            times(3, traffic(run.step.training, static_cast<uint16_t>(r / static_cast<size_t>(layout.dp)),
                             static_cast<uint64_t>(layout.dp)));
        EXPECT_EQ(run.result.wire_bytes[r], expected)
            << describe(run.config) << ", rank " << r << ": " << in_words(run.result.wire_bytes[r]) << "; planned "
            << in_words(expected);
      }
    });
}

// 2Ψ(N-1)/N for an all-reduce, Ψ(N-1)/N for an all-gather and for a reduce-scatter, of what each stage holds.
TEST(CountedBytes, EqualTheClosedForms) {
  for (const ModelConfig& config : {odd(tiny_gpt2()), odd(tiny_llama())})
    for_each_layout([&](const Layout& layout) {
      const Counted run = run_counted(config, layout);
      const auto n = static_cast<uint64_t>(layout.dp), m = static_cast<uint64_t>(layout.micro_batches());
      const uint64_t steps = 3, reductions = layout.reduce_every == ReduceEvery::Micro ? m : 1;
      for (size_t r = 0; r < run.result.wire_bytes.size(); ++r) {
        const size_t stage = r / static_cast<size_t>(layout.dp);
        // 4Ψ(N-1)/N: of what the stage's blocks use; and of the same with a tied group once.
        uint64_t by_use = 0, once = 0;
        std::vector<bool> seen(run.model->groups.size());
        for (size_t b = run.step.shape.first_block[stage]; b < run.step.shape.first_block[stage + 1]; ++b)
          for (const uint16_t group : run.model->blocks[b].groups) {
            const uint64_t bytes = 4 * ((run.model->groups[group].elements + n - 1) / n) * (n - 1);
            by_use += bytes;
            if (!seen[group]) once += bytes;
            seen[group] = true;
          }
        const uint64_t neighbours = (stage > 0 ? 1u : 0u) + (stage + 1 < static_cast<size_t>(layout.pp) ? 1u : 0u);
        WireBytes expected;
        expected.send = neighbours * m * 4 * static_cast<uint64_t>(config.seq_len * config.hidden);
        if (layout.zero == 0)
          expected.all_reduce = reductions * 2 * by_use;
        else
          expected.reduce_scatter = reductions * by_use;
        if (layout.zero == 1 || layout.zero == 2) expected.all_gather = once;
        if (layout.zero == 3) expected.all_gather = layout.reshard_after_forward ? 2 * m * by_use : once;
        if (config.tied_embeddings && layout.pp > 1 && neighbours == 1) {
          const uint64_t table = static_cast<uint64_t>(config.vocab_size * config.hidden);
          const uint64_t shard = (table + n - 1) / n;
          expected.all_reduce += 4 * 2 * (((layout.zero == 0 ? n * shard : shard) + 1) / 2);
        }
        // A square a group and shard, a loss and its tokens a micro-batch and replica, and whether to stop.
        const uint64_t slots = run.model->groups.size() * n + 2 * n * m + 1,
                       ranks = static_cast<uint64_t>(layout.ranks());
        expected.scalar_all_reduce = 2 * 8 * ((slots + ranks - 1) / ranks) * (ranks - 1);
        const WireBytes& found = run.result.wire_bytes[r];
        EXPECT_EQ(found.send, steps * expected.send) << describe(run.config) << ", rank " << r;
        EXPECT_EQ(found.all_gather, steps * expected.all_gather) << describe(run.config) << ", rank " << r;
        EXPECT_EQ(found.reduce_scatter, steps * expected.reduce_scatter) << describe(run.config) << ", rank " << r;
        EXPECT_EQ(found.all_reduce, steps * expected.all_reduce) << describe(run.config) << ", rank " << r;
        EXPECT_EQ(found.scalar_all_reduce, steps * expected.scalar_all_reduce)
            << describe(run.config) << ", rank " << r;
        EXPECT_EQ(found.broadcast, 0u);
      }
    });
}

TEST(ArenaPeak, IsThePlannedOneToTheByte) {
  for (const ModelConfig& model : {odd(tiny_gpt2()), odd(tiny_llama())})
    for_each_layout([&](const Layout& layout) {
      for (const int64_t held_out_samples : {0, 3}) {
        const Counted run = run_counted(model, layout, held_out_samples);
        ASSERT_EQ(run.result.peak_bytes.size(), static_cast<size_t>(layout.ranks()));
        EXPECT_EQ(run.result.peak_bytes, run.result.planned_peak_bytes) << describe(run.config);
        for (size_t r = 0; r < run.result.peak_bytes.size(); ++r)
          EXPECT_GE(run.result.peak_bytes[r],
                    run.step.training.by_pipeline_rank[r / static_cast<size_t>(layout.dp)].arena_bytes);
      }
    });
}

// The arena of a rank that is never trained is as large as the plan says, and no action reaches beyond it.
TEST(ArenaPeak, IsWhatARankAllocates) {
  const Model model = make_model(odd(tiny_gpt2()));
  const Step step = make_step(model, tiny_layout(2, 2, 3, 2, ReduceEvery::Micro), 2);
  LocalWorld world(4);
  run_ranks(world, [&](int r) {
    const Rank rank(step, world, r);
    const size_t stage = static_cast<size_t>(r) / 2;
    EXPECT_EQ(rank.arena_bytes(), std::max(step.training.by_pipeline_rank[stage].arena_bytes,
                                           step.evaluation.by_pipeline_rank[stage].arena_bytes));
    EXPECT_EQ(rank.highest_byte(), rank.arena_bytes());
  });
}

}  // namespace
}  // namespace shardpipe
