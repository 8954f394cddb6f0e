// The real executor with blocks that only take time, against the schedule's own clock.
#include "train/timed_run.h"

#include <gtest/gtest.h>

#include "train/trainer.h"

namespace shardpipe {
namespace {

RunConfig timed(const std::string& schedule) {
  RunConfig config;
  config.model = model_preset("synthetic");
  config.block_cost = {16, 16, 16};
  config.layout.pp = 4;
  config.layout.global_batch_size = 8;
  config.layout.schedule = schedule;
  config.steps = 1;
  return config;
}

// A pause is never too short, however busy the machine: so neither is the work of a rank, nor the step. How near they
// come is for `train --model synthetic` to print on a machine that has the time.
TEST(TimedRunSlow, IsNeverShorterThanTheScheduleSays) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"}) {
    const RunConfig config = timed(schedule);
    const Model model = make_model(config.model);
    const Step step = make_step(model, config.layout, 0);
    const Occupancy planned = scheduled_occupancy(config, step);
    const Occupancy measured = occupancy(
        step,
        run_asleep(
            step, [&](const Action& action) { return Duration(block_seconds(config, model, action)); }, config.steps));
    EXPECT_GE(measured.step_seconds, planned.step_seconds) << schedule;
    for (size_t rank = 0; rank < 4; ++rank) {
      EXPECT_GE(measured.busy_seconds[rank], planned.busy_seconds[rank]) << schedule;
      EXPECT_LE(measured.busy_seconds[rank], measured.step_seconds) << schedule;
    }
  }
}

TEST(TimedRun, LayersTakeWhatBlockCostSaysAndTheOthersNothing) {
  RunConfig config = timed("1f1b");
  config.block_cost = {1, 2, 4};
  const Model model = make_model(config.model);
  const auto seconds = [&](Kind kind, uint16_t block) {
    return block_seconds(config, model, {.kind = kind, .index = block});
  };
  EXPECT_DOUBLE_EQ(seconds(Kind::Forward, 1), 0.001);
  EXPECT_DOUBLE_EQ(seconds(Kind::BackwardInput, 1), 0.002);
  EXPECT_DOUBLE_EQ(seconds(Kind::BackwardWeight, 1), 0.004);
  EXPECT_DOUBLE_EQ(seconds(Kind::Backward, 1), 0.006);
  EXPECT_EQ(seconds(Kind::Forward, 0), 0);
  EXPECT_EQ(seconds(Kind::Backward, static_cast<uint16_t>(model.blocks.size() - 1)), 0);
  EXPECT_EQ(seconds(Kind::OptimizerStep, 1), 0);
}

}  // namespace
}  // namespace shardpipe
