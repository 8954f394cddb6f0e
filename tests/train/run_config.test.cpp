#include "train/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

RunConfig right() {
  RunConfig config;
  config.model = model_preset("gpt2-tiny");
  config.layout.stages = {6};
  config.data.data = {"corpus.txt"};
  return config;
}

// Linear warm-up to 1e-3 over 10 steps: 1e-3·k/10 at step k. A rate that advanced by micro-batch or by rank would be
// done earlier; learning_rate cannot, since it is told of neither.
TEST(LearningRate, WarmsUpByOptimizerStep) {
  const OptimizerConfig config{.lr = 1e-3, .min_lr = 1e-4, .lr_schedule = LrSchedule::Constant, .warmup_steps = 10};
  for (int64_t step = 1; step <= 10; ++step)
    EXPECT_DOUBLE_EQ(learning_rate(config, step, 40), 1e-3 * static_cast<double>(step) / 10);
  EXPECT_EQ(learning_rate(config, 10, 40), 1e-3);
  for (int64_t step = 11; step <= 40; ++step) EXPECT_EQ(learning_rate(config, step, 40), 1e-3);
}

TEST(LearningRate, EndsAtMinLrToTheBit) {
  for (const LrSchedule schedule : {LrSchedule::Linear, LrSchedule::Cosine})
    for (const int64_t warmup : {0, 1, 7})
      for (const int64_t steps : {8, 100, 12'345}) {
        const OptimizerConfig config{.lr = 0.3, .min_lr = 0.07, .lr_schedule = schedule, .warmup_steps = warmup};
        EXPECT_EQ(learning_rate(config, steps, steps), 0.07);
      }
}

TEST(LearningRate, FallsSteadilyAfterTheWarmUp) {
  for (const LrSchedule schedule : {LrSchedule::Linear, LrSchedule::Cosine}) {
    const OptimizerConfig config{.lr = 1e-2, .min_lr = 0, .lr_schedule = schedule, .warmup_steps = 5};
    for (int64_t step = 5; step < 50; ++step)
      EXPECT_GT(learning_rate(config, step, 50), learning_rate(config, step + 1, 50));
  }
}

TEST(LearningRate, FollowsTheClosedForms) {
  OptimizerConfig config{.lr = 1.0, .min_lr = 0.2, .lr_schedule = LrSchedule::Linear, .warmup_steps = 20};
  EXPECT_NEAR(learning_rate(config, 60, 100), 0.6, 1e-15);  // half way
  EXPECT_NEAR(learning_rate(config, 40, 100), 0.8, 1e-15);  // a quarter
  config.lr_schedule = LrSchedule::Cosine;
  EXPECT_NEAR(learning_rate(config, 60, 100), 0.6, 1e-15);
  EXPECT_NEAR(learning_rate(config, 40, 100), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2, 1e-15);
}

TEST(LearningRate, WarmUpMayLastForTheWholeRun) {
  const OptimizerConfig config{.lr = 1e-3, .min_lr = 0, .lr_schedule = LrSchedule::Cosine, .warmup_steps = 4};
  EXPECT_EQ(learning_rate(config, 4, 4), 1e-3);
}

TEST(LearningRate, RefusesAStepOutsideOfTheRun) {
  EXPECT_THROW(learning_rate({}, 0, 10), InvariantError);
  EXPECT_THROW(learning_rate({}, 11, 10), InvariantError);
}

TEST(RunConfigRules, ARightOneHasNoProblem) { EXPECT_THAT(problems_of(right()), IsEmpty()); }

TEST(RunConfigRules, ValuesAtTheEdgeAreRight) {
  RunConfig config = right();
  config.optimizer = {
      .lr = 0, .min_lr = 0, .warmup_steps = 1, .beta1 = 0, .beta2 = 0.999, .weight_decay = 0, .grad_clip = 0};
  config.steps = 1;
  config.seed = 0;
  config.data.val_fraction = 0;
  EXPECT_THAT(problems_of(config), IsEmpty());
}

struct Case {
  std::string flag, found;
  std::function<void(RunConfig&)> spoil;
};

class RunConfigRule : public testing::TestWithParam<Case> {};

// One line, which names the flag, the value found and what is allowed.
TEST_P(RunConfigRule, IsToldInOneLine) {
  RunConfig config = right();
  GetParam().spoil(config);
  EXPECT_THAT(problems_of(config),
              ElementsAre(AllOf(HasSubstr(GetParam().flag), HasSubstr(GetParam().found), HasSubstr("allowed"))));
}

INSTANTIATE_TEST_SUITE_P(
    Broken, RunConfigRule,
    testing::Values(Case{"--lr: ", "found nan", [](RunConfig& c) { c.optimizer.lr = nan_value; }},
                    Case{"--lr: ", "found inf", [](RunConfig& c) { c.optimizer.lr = infinity; }},
                    Case{"--lr: ", "found 1e+300", [](RunConfig& c) { c.optimizer.lr = 1e300; }},
                    Case{"--lr: ", "found -0.1", [](RunConfig& c) { c.optimizer.lr = -0.1; }},
                    Case{"--min-lr: ", "found nan", [](RunConfig& c) { c.optimizer.min_lr = nan_value; }},
                    Case{"--min-lr: ", "found -1", [](RunConfig& c) { c.optimizer.min_lr = -1; }},
                    Case{"--min-lr: ", "found 0.5, above --lr 0.1",
                         [](RunConfig& c) { c.optimizer.lr = 0.1, c.optimizer.min_lr = 0.5; }},
                    Case{"--warmup-steps: ", "found 101, more than --steps 100",
                         [](RunConfig& c) { c.optimizer.warmup_steps = 101; }},
                    Case{"--warmup-steps: ", "found -1", [](RunConfig& c) { c.optimizer.warmup_steps = -1; }},
                    Case{"--beta1: ", "found 1,", [](RunConfig& c) { c.optimizer.beta1 = 1; }},
                    Case{"--beta1: ", "found nan", [](RunConfig& c) { c.optimizer.beta1 = nan_value; }},
                    Case{"--beta2: ", "found 0.9999999999", [](RunConfig& c) { c.optimizer.beta2 = 0.9999999999; }},
                    Case{"--beta2: ", "found -0.5", [](RunConfig& c) { c.optimizer.beta2 = -0.5; }},
                    Case{"--epsilon: ", "found 0,", [](RunConfig& c) { c.optimizer.epsilon = 0; }},
                    Case{"--epsilon: ", "found 1e-300", [](RunConfig& c) { c.optimizer.epsilon = 1e-300; }},
                    Case{"--epsilon: ", "found nan", [](RunConfig& c) { c.optimizer.epsilon = nan_value; }},
                    Case{"--weight-decay: ", "found -0.01", [](RunConfig& c) { c.optimizer.weight_decay = -0.01; }},
                    Case{"--weight-decay: ", "found inf", [](RunConfig& c) { c.optimizer.weight_decay = infinity; }},
                    Case{"--grad-clip: ", "found -1", [](RunConfig& c) { c.optimizer.grad_clip = -1; }},
                    Case{"--grad-clip: ", "found nan", [](RunConfig& c) { c.optimizer.grad_clip = nan_value; }},
                    Case{"--val-fraction: ", "found 1,", [](RunConfig& c) { c.data.val_fraction = 1; }},
                    Case{"--val-fraction: ", "found -0.1", [](RunConfig& c) { c.data.val_fraction = -0.1; }},
                    Case{"--val-fraction: ", "found nan", [](RunConfig& c) { c.data.val_fraction = nan_value; }},
                    Case{"--steps: ", "found 0", [](RunConfig& c) { c.steps = 0; }},
                    Case{"--steps: ", "found -9223372036854775808",
                         [](RunConfig& c) { c.steps = std::numeric_limits<int64_t>::min(); }},
                    Case{"--steps: ", "found 9223372036854775807",
                         [](RunConfig& c) { c.steps = std::numeric_limits<int64_t>::max(); }},
                    Case{"--seed: ", "found -1", [](RunConfig& c) { c.seed = std::numeric_limits<uint64_t>::max(); }},
                    Case{"--eval-every: ", "found -1", [](RunConfig& c) { c.eval_every = -1; }},
                    Case{"--eval-every: ", "found 5 with --val-fraction 0",
                         [](RunConfig& c) { c.eval_every = 5, c.data.val_fraction = 0; }},
                    Case{"--eval-sequences: ", "found 0", [](RunConfig& c) { c.eval_sequences = 0; }},
                    Case{"--data: ", "found an empty name", [](RunConfig& c) { c.data.data.emplace_back(""); }},
                    Case{"--data: ", "not UTF-8", [](RunConfig& c) { c.data.data.emplace_back("corpus\xFF.txt"); }},
                    Case{"--out: ", "not UTF-8", [](RunConfig& c) { c.out = "run\xC0\x80"; }},
                    Case{"--out: ", "not UTF-8", [](RunConfig& c) { c.out = std::string("run\0x", 5); }},
                    Case{"--out: ", "not UTF-8", [](RunConfig& c) { c.out = "cut \xE2\x82"; }},
                    Case{"--trace: ", "found without --out", [](RunConfig& c) { c.trace = true; }},
                    Case{"--pp: ", "found 7 stages", [](RunConfig& c) { c.layout.pp = 7, c.layout.stages.clear(); }}));

TEST(RunConfigRules, NamesInUtf8AreRight) {
  RunConfig config = right();
  config.data.data = {"Bücher.txt", "текст", "日本語", "😀", "quote\" back\\slash \n"};
  EXPECT_THAT(problems_of(config), IsEmpty());
}

TEST(RunConfigRules, ProblemsOfModelLayoutAndTrainingAreToldTogether) {
  RunConfig config = right();
  config.model.layers = 0;
  config.layout.dp = -1;
  config.steps = 0;
  config.optimizer.lr = nan_value;
  const std::vector<std::string> lines = problems_of(config);
  EXPECT_EQ(lines.size(), 4U);
  EXPECT_THAT(lines, Contains(HasSubstr("layers")));
  EXPECT_THAT(lines, Contains(HasSubstr("--dp: found -1")));
  EXPECT_THAT(lines, Contains(HasSubstr("--steps: found 0")));
  EXPECT_THAT(lines, Contains(HasSubstr("--lr: found nan")));
}

}  // namespace
}  // namespace shardpipe
