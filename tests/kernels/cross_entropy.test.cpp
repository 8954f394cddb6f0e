#include <gmock/gmock.h>
#include <kernels/cpu/cross_entropy.h>

#include <limits>
#include <stdexcept>

#include "kernels/check.h"

namespace shardpipe::kernels::test {
namespace {

using Targets = std::vector<int32_t>;

Targets random_targets(int64_t tokens, int64_t vocabulary) {
  std::mt19937 generator(7);
  Targets targets;
  for (int64_t i = 0; i < tokens; ++i)
    targets.push_back(static_cast<int32_t>(generator() % static_cast<uint64_t>(vocabulary)));
  return targets;
}

double naive_loss(const Doubles& logits, const Targets& targets) {
  const size_t vocabulary = logits.size() / targets.size();
  double loss = 0;
  for (size_t token = 0; token < targets.size(); ++token) {
    if (targets[token] == ignored_target) continue;
    double sum = 0;
    for (size_t i = 0; i < vocabulary; ++i) sum += std::exp(logits[token * vocabulary + i]);
    loss += std::log(sum) - logits[token * vocabulary + static_cast<size_t>(targets[token])];
  }
  return loss;
}

class CrossEntropy : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {
 protected:
  const int64_t tokens = std::get<0>(GetParam()), vocabulary = std::get<1>(GetParam());
  const Floats logits = random_floats(tokens * vocabulary, 1, -4, 4);
  const Targets targets = random_targets(tokens, vocabulary);
  Floats log_sum_exp = Floats(static_cast<size_t>(tokens));
};

TEST_P(CrossEntropy, LossIsTheFormula) {
  const LossSum sum = cross_entropy_forward(logits.data(), targets.data(), log_sum_exp.data(), tokens, vocabulary);
  EXPECT_EQ(sum.tokens, tokens);
  const double expected = naive_loss(widen(logits), targets);
  EXPECT_NEAR(sum.loss, expected, 1e-6 * (1 + expected));
}

TEST_P(CrossEntropy, GradientIsTheDerivative) {
  cross_entropy_forward(logits.data(), targets.data(), log_sum_exp.data(), tokens, vocabulary);
  Floats gradient = logits;
  cross_entropy_backward_input(gradient.data(), targets.data(), log_sum_exp.data(), tokens, vocabulary, 1);
  FiniteDifferences{[&](const Doubles& v) { return Doubles{naive_loss(v, targets)}; }, {1}}.expect_gradient(
      gradient, widen(logits), 1e-5, "dlogits");
}

INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropy,
                         testing::Combine(testing::Values(1, 5), testing::Values(1, 3, 17, 65, 256, 1001)),
                         [](const auto& instance) {
                           return "tokens" + std::to_string(std::get<0>(instance.param)) + "_vocabulary" +
                                  std::to_string(std::get<1>(instance.param));
                         });

TEST(CrossEntropyTargets, IgnoredOnesGiveNoLossNoGradientAndAreNotCounted) {
  const Floats logits = random_floats(3 * 17, 1);
  const Targets targets = {4, ignored_target, 16};
  Floats log_sum_exp(3), gradient = logits;
  const LossSum sum = cross_entropy_forward(logits.data(), targets.data(), log_sum_exp.data(), 3, 17);
  EXPECT_EQ(sum.tokens, 2);
  EXPECT_NEAR(sum.loss, naive_loss(widen(logits), targets), 1e-5);
  cross_entropy_backward_input(gradient.data(), targets.data(), log_sum_exp.data(), 3, 17, 1);
  for (size_t i = 17; i < 34; ++i) EXPECT_EQ(gradient[i], 0);
  EXPECT_LT(gradient[4], 0);
  EXPECT_LT(gradient[34 + 16], 0);
}

TEST(CrossEntropyTargets, OutsideTheVocabularyAreRefusedBeforeAnythingIsWritten) {
  Floats logits = random_floats(2 * 17, 1), log_sum_exp = {-5, -5};
  const Floats before = logits;
  for (const int32_t wrong : {-2, 17, 1 << 30}) {
    const Targets targets = {3, wrong};
    EXPECT_THROW(cross_entropy_forward(logits.data(), targets.data(), log_sum_exp.data(), 2, 17), std::out_of_range);
    EXPECT_THROW(cross_entropy_backward_input(logits.data(), targets.data(), log_sum_exp.data(), 2, 17, 1),
                 std::out_of_range);
    try {
      cross_entropy_forward(logits.data(), targets.data(), log_sum_exp.data(), 2, 17);
    } catch (const std::out_of_range& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("target " + std::to_string(wrong) + " at place 1"));
    }
  }
  EXPECT_EQ(log_sum_exp, Floats({-5, -5}));
  EXPECT_TRUE(same_bits(logits, before));
}

TEST(CrossEntropyExtremes, LargeLogitsDoNotOverflowAndNotANumberIsNotHidden) {
  Floats logits = {1e30f, -1e30f, 0, 5, 88, 700, -700, 3};
  Floats log_sum_exp(1);
  const Targets target = {0};
  EXPECT_EQ(cross_entropy_forward(logits.data(), target.data(), log_sum_exp.data(), 1, 8).loss, 0);
  for (const float bad : {NAN, std::numeric_limits<float>::infinity()}) {
    for (size_t i = 1; i < logits.size(); ++i) {
      Floats spoilt = random_floats(8, 1);
      spoilt[i] = bad;
      EXPECT_FALSE(std::isfinite(cross_entropy_forward(spoilt.data(), target.data(), log_sum_exp.data(), 1, 8).loss));
    }
  }
}

}  // namespace
}  // namespace shardpipe::kernels::test
