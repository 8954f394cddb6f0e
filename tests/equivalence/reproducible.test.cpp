// --reproducible: one set of bits for all replicas, copies, cadences, stages, schedules and ZeRO stages.
#include <gmock/gmock.h>

#include <array>
#include <atomic>

#include "equivalence/course.h"
#include "schedules/schedule.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Sixteen sequences a step, one in a micro-batch, however many replicas share them.
RunConfig reproducible_run(DType precision, const ModelConfig& model, int64_t pp, int64_t dp, int zero,
                           ReduceEvery reduce_every, const std::string& schedule, int64_t micro_batches = 16) {
  RunConfig config = tiny_run(model, tiny_layout(pp, dp, zero, micro_batches / dp, reduce_every, schedule));
  config.steps = 20;
  config.layout.precision = precision;
  config.layout.reproducible = true;
  return config;
}

class Reproducible : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, Reproducible, testing::Values(DType::Float32, DType::BFloat16, DType::Float16),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST_P(Reproducible, OneDigestOverReplicasCopiesCadencesStagesSchedulesAndZero) {
  const std::array schedules{"1f1b", "gpipe", "zb-h1"};
  for (const ModelConfig& model : {tiny_gpt2(), tiny_llama()}) {
    const Course plain = train_plain(reproducible_run(GetParam(), model, 1, 1, 0, ReduceEvery::Step, "1f1b"));
    const Course of_replicas = train_plain(reproducible_run(GetParam(), model, 1, 4, 0, ReduceEvery::Micro, "1f1b"));
    EXPECT_EQ(of_replicas.digest, plain.digest);
    RunConfig in_floats = reproducible_run(GetParam(), model, 1, 1, 0, ReduceEvery::Step, "1f1b");
    in_floats.layout.reproducible = false;
    const Course floats = train_plain(in_floats);
    EXPECT_NE(floats.digest, plain.digest);
    EXPECT_NEAR(floats.losses.back(), plain.losses.back(), 0.01 * floats.losses.back());
    size_t number = 0;
    for (const int64_t dp : {1, 2, 4})
      for (const int64_t pp : {1, 2, 4})
        for (const int zero : {0, 3}) {
          const ReduceEvery reduce_every = number % 2 == 0 ? ReduceEvery::Micro : ReduceEvery::Step;
          RunConfig config =
              reproducible_run(GetParam(), model, pp, dp, zero, reduce_every, schedules[number++ % schedules.size()]);
          ASSERT_TRUE(same_bits(train(config), plain)) << describe(config);
          if (zero == 0 || dp < 2) continue;
          config.layout.replicate = 2;
          config.layout.reduce_every = reduce_every == ReduceEvery::Micro ? ReduceEvery::Step : ReduceEvery::Micro;
          ASSERT_TRUE(same_bits(train(config), plain)) << describe(config);
        }
  }
}

// A gradient of one micro-batch on one rank, in one step, that no exact sum can take; by a value that is finite, whose
// squares are too.
TrainHooks striking(int struck, int64_t at_step, float value, std::atomic<int>& strikes) {
  TrainHooks hooks;
  hooks.observer = [=, &strikes](int world_rank) -> Observer {
    return [=, &strikes](int64_t step, const Action& action, const RankProgram& rank, std::byte* arena) {
      if (world_rank != struck || step != at_step || !gives_gradients(action.kind) || action.micro_batch != 1) return;
      for (const Use& use : uses_of(rank, action)) {
        const Buffer& buffer = rank.buffers[use.buffer];
        if (buffer.role != Role::Gradient) continue;
        *reinterpret_cast<float*>(arena + buffer.offset) = value;
        ++strikes;
      }
    };
  };
  return hooks;
}

TEST(ReproducibleOverflow, OfOneRankIsSkippedByAllAndChangesNothing) {
  for (const int zero : {0, 3})
    for (const ReduceEvery reduce_every : {ReduceEvery::Micro, ReduceEvery::Step})
      for (const int struck : {3, 7}) {  // replica 3 of either stage
        RunConfig config = reproducible_run(DType::Float32, tiny_gpt2(), 2, 4, zero, reduce_every, "1f1b", 8);
        config.steps = 1;
        config.on_nan = OnNan::Continue;
        std::atomic<int> strikes = 0;
        const Course course = train(config, striking(struck, 1, -0x1p22f, strikes));
        EXPECT_GT(strikes, 0);
        EXPECT_EQ(course.result.skipped_steps, 1) << describe(config);
        EXPECT_EQ(course.weights, initial_weights(config)) << describe(config);
        EXPECT_TRUE(std::isfinite(course.losses[0]));
        // The run goes on from the same state.
        config.steps = 3;
        EXPECT_EQ(train(config, striking(struck, 2, 0x1p22f, strikes)).result.skipped_steps, 1);
      }
}

TEST(ReproducibleOverflow, TheLargestValueInRangeIsNoOverflow) {
  RunConfig config = reproducible_run(DType::Float32, tiny_gpt2(), 2, 2, 3, ReduceEvery::Micro, "1f1b", 4);
  config.steps = 1;
  std::atomic<int> strikes = 0;
  EXPECT_EQ(train(config, striking(1, 1, 0x1p21f, strikes)).result.skipped_steps, 0);
  EXPECT_GT(strikes, 0);
}

TEST(ReproducibleOverflow, WithoutALossScaleEndsTheRunAndNamesTheRange) {
  const RunConfig config = reproducible_run(DType::Float32, tiny_gpt2(), 2, 2, 3, ReduceEvery::Micro, "1f1b", 4);
  std::atomic<int> strikes = 0;
  try {
    train(config, striking(1, 3, 0x1p22f, strikes));
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("step 3"), HasSubstr("±2^21"), HasSubstr("--reproducible")));
  }
}

// As after any other overflow.
TEST(ReproducibleOverflow, MakesTheLossScaleOfAllRanksFall) {
  RunConfig config = reproducible_run(DType::Float16, tiny_gpt2(), 2, 2, 3, ReduceEvery::Micro, "1f1b", 4);
  config.steps = 3;
  config.loss_scale = {.initial = 1024, .hysteresis = 1};
  std::atomic<int> strikes = 0;
  const Course course = train(config, striking(1, 2, 0x1p60f, strikes));
  EXPECT_EQ(course.result.skipped_steps, 1);
  EXPECT_EQ(course.result.last.scalars.loss_scale, 512);
}

}  // namespace
}  // namespace shardpipe
