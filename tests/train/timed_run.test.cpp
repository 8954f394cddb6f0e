// The real executor with blocks that only take time, against the schedule's own clock.
#include "train/timed_run.h"

#include <gtest/gtest.h>

#include <cmath>

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

// A pause is never too short, and on a busy machine now and then too long: of a few steps the nearest counts.
TEST(TimedRunSlow, MeasuresTheBubbleThatTheScheduleSays) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"}) {
    const RunConfig config = timed(schedule);
    const Model model = make_model(config.model);
    const Step step = make_step(model, config.layout, 0);
    const double planned = scheduled_occupancy(config, step).bubble();
    double measured = 0;
    for (int attempt = 0; attempt < 8 && !(std::abs(measured / planned - 1) < 0.05); ++attempt)
      measured =
          occupancy(step,
                    run_asleep(
                        step, [&](const Action& action) { return Duration(block_seconds(config, model, action)); },
                        config.steps))
              .bubble();
    EXPECT_NEAR(measured / planned, 1, 0.05) << schedule << ": measured " << measured << ", planned " << planned;
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
