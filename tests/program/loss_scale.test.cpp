#include "program/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>

namespace shardpipe {
namespace {

// The scale before each of these steps, and after the last: 'o' an overflow, '.' none.
std::vector<double> scales(const std::string& steps, const LossScaleSettings& settings) {
  LossScale state = initial_loss_scale(settings, 64);
  std::vector<double> all{state.scale};
  for (const char step : steps) {
    state = next_loss_scale(state, settings, step == 'o', 64);
    all.push_back(state.scale);
  }
  return all;
}

TEST(LossScale, DefaultsAreThoseOfDeepSpeed) {
  const LossScaleSettings defaults;
  EXPECT_EQ(defaults.initial, 65536);
  EXPECT_EQ(defaults.growth, 2);
  EXPECT_EQ(defaults.backoff, 0.5);
  EXPECT_EQ(defaults.growth_interval, 1000);
  EXPECT_EQ(defaults.hysteresis, 2);
  EXPECT_EQ(defaults.minimum, 1);
}

TEST(LossScale, GrowsAfterAnIntervalWithoutOverflow) {
  EXPECT_EQ(scales("......", {.initial = 8, .growth_interval = 3, .hysteresis = 1}),
            (std::vector<double>{8, 8, 8, 16, 16, 16, 32}));
  EXPECT_EQ(scales("..o...", {.initial = 8, .growth_interval = 3, .hysteresis = 1}),
            (std::vector<double>{8, 8, 8, 4, 4, 4, 8}));
}

TEST(LossScale, FallsAtOnceWithoutHysteresisAndNeverBelowTheMinimum) {
  EXPECT_EQ(scales("oooo", {.initial = 8, .minimum = 2, .growth_interval = 3, .hysteresis = 1}),
            (std::vector<double>{8, 4, 2, 2, 2}));
}

// Spent once, every further overflow backs off, good steps between them or not; growth refills it.
TEST(LossScale, HysteresisIsSpentOnceAndRefilledByGrowth) {
  const LossScaleSettings settings{.initial = 64, .growth_interval = 2, .hysteresis = 3};
  EXPECT_EQ(scales("oooo", settings), (std::vector<double>{64, 64, 64, 32, 16}));
  EXPECT_EQ(scales("oo.oo", settings), (std::vector<double>{64, 64, 64, 64, 32, 16}));
  EXPECT_EQ(scales("oo..oo", settings), (std::vector<double>{64, 64, 64, 64, 128, 128, 128}));
}

TEST(LossScale, OverflowsAreCounted) {
  LossScale state = initial_loss_scale({}, 64);
  for (const bool overflow : {true, false, true, true, false}) state = next_loss_scale(state, {}, overflow, 64);
  EXPECT_EQ(state.skipped, 3);
}

// So that it rounds nothing: the scale of the mean loss over the next power of two above the batch's tokens.
TEST(LossScale, TheFactorIsTheScaleOverAPowerOfTwoOfTokens) {
  for (const auto& [tokens, over] : {std::pair<int64_t, float>{1, 1}, {2, 2}, {3, 4}, {64, 64}, {65, 128}})
    EXPECT_EQ(initial_loss_scale({.initial = 4096}, tokens).factor, 4096 / over) << tokens;
}

TEST(LossScale, StaysAFiniteFloat) {
  LossScale state = initial_loss_scale({.initial = 0x1p64, .growth = 1024, .growth_interval = 1}, 1);
  for (int step = 0; step < 100; ++step)
    state = next_loss_scale(state, {.growth = 1024, .growth_interval = 1}, false, 1);
  EXPECT_TRUE(std::isfinite(state.factor));
}

}  // namespace
}  // namespace shardpipe
