// The real executor with blocks that only take time, against the simulator.
#include "train/timed_run.h"

#include <gtest/gtest.h>

#include "program/simulate.h"
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
TEST(TimedRunSlow, IsNeverShorterThanTheSimulatorSays) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"}) {
    const RunConfig config = timed(schedule);
    const Model model = make_model(config.model);
    const Step step = make_step(model, config.layout, 0);
    const CostModel costs = synthetic_costs(config, model);
    const StepFigures simulated = step_figures(step.training, simulate(step.training, costs));
    const StepFigures measured = measured_figures(step, run_asleep(step, costs, config.steps));
    EXPECT_GE(measured.step_seconds, simulated.step_seconds) << schedule;
    for (size_t rank = 0; rank < 4; ++rank)
      EXPECT_GE(measured.ranks[rank].compute_seconds, simulated.ranks[rank].compute_seconds) << schedule;
  }
}

TEST(TimedRun, LayersTakeWhatBlockCostSaysAndTheOthersNothing) {
  RunConfig config = timed("1f1b");
  config.block_cost = {1, 2, 4};
  const Model model = make_model(config.model);
  const Program program = make_step(model, config.layout, 0).training;
  const CostModel costs = synthetic_costs(config, model);
  const auto seconds = [&](Kind kind, uint16_t block) {
    return seconds_of(costs, program, 0, {.kind = kind, .index = block});
  };
  EXPECT_DOUBLE_EQ(seconds(Kind::Forward, 1), 0.001);
  EXPECT_DOUBLE_EQ(seconds(Kind::BackwardInput, 1), 0.002);
  EXPECT_DOUBLE_EQ(seconds(Kind::BackwardWeight, 1), 0.004);
  EXPECT_DOUBLE_EQ(seconds(Kind::Backward, 1), 0.006);
  EXPECT_DOUBLE_EQ(seconds(Kind::Recompute, 1), 0.001);  // as the forward
  EXPECT_EQ(seconds(Kind::Forward, 0), 0);
  EXPECT_EQ(seconds(Kind::Backward, static_cast<uint16_t>(model.blocks.size() - 1)), 0);
  EXPECT_EQ(seconds(Kind::OptimizerStep, 1), 0);
  config.block_cost = {1, 2, 4, 0.5};
  EXPECT_DOUBLE_EQ(synthetic_costs(config, model).blocks[1].recompute, 0.0005);
}

}  // namespace
}  // namespace shardpipe
