#include <kernels/cpu/layernorm.h>
#include <kernels/cpu/rmsnorm.h>

#include "kernels/check.h"

namespace shardpipe::kernels::test {
namespace {

constexpr float epsilon = 1e-5f;

Doubles naive_layernorm(const Doubles& x, const Doubles& gamma, const Doubles& beta) {
  const size_t width = gamma.size();
  Doubles y(x.size());
  for (size_t row = 0; row < x.size(); row += width) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < width; ++i) mean += x[row + i] / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) variance += std::pow(x[row + i] - mean, 2) / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) {
      y[row + i] = (x[row + i] - mean) / std::sqrt(variance + double{epsilon}) * gamma[i] + beta[i];
    }
  }
  return y;
}

Doubles naive_rmsnorm(const Doubles& x, const Doubles& gamma) {
  const size_t width = gamma.size();
  Doubles y(x.size());
  for (size_t row = 0; row < x.size(); row += width) {
    double square = 0;
    for (size_t i = 0; i < width; ++i) square += x[row + i] * x[row + i] / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) y[row + i] = x[row + i] / std::sqrt(square + double{epsilon}) * gamma[i];
  }
  return y;
}

class Normalisation : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {
 protected:
  const int64_t tokens = std::get<0>(GetParam()), width = std::get<1>(GetParam());
  const Floats x = random_floats(tokens * width, 1, -2, 3), gamma = random_floats(width, 2),
               beta = random_floats(width, 3), dy = random_floats(tokens * width, 4);
  Floats y = Floats(x.size()), mean = Floats(static_cast<size_t>(tokens)), rstd = mean, dx = y, dgamma = gamma,
         dbeta = beta;
};

TEST_P(Normalisation, LayerNormForwardIsTheFormula) {
  layernorm_forward(x.data(), gamma.data(), beta.data(), y.data(), mean.data(), rstd.data(), tokens, width, epsilon);
  expect_close(y, naive_layernorm(widen(x), widen(gamma), widen(beta)), 2e-5, "y");
}

TEST_P(Normalisation, LayerNormGradientsAreDerivatives) {
  layernorm_forward(x.data(), gamma.data(), beta.data(), y.data(), mean.data(), rstd.data(), tokens, width, epsilon);
  layernorm_backward_input(dy.data(), x.data(), gamma.data(), mean.data(), rstd.data(), dx.data(), tokens, width,
                           false);
  layernorm_backward_weight(dy.data(), x.data(), mean.data(), rstd.data(), dgamma.data(), dbeta.data(), tokens, width,
                            false);
  const Doubles wx = widen(x), wgamma = widen(gamma), wbeta = widen(beta), weights = widen(dy);
  FiniteDifferences{[&](const Doubles& v) { return naive_layernorm(v, wgamma, wbeta); }, weights}.expect_gradient(
      dx, wx, 1e-4, "dx");
  FiniteDifferences{[&](const Doubles& v) { return naive_layernorm(wx, v, wbeta); }, weights}.expect_gradient(
      dgamma, wgamma, 1e-4, "dgamma");
  FiniteDifferences{[&](const Doubles& v) { return naive_layernorm(wx, wgamma, v); }, weights}.expect_gradient(
      dbeta, wbeta, 1e-4, "dbeta");
}

TEST_P(Normalisation, RmsNormForwardIsTheFormula) {
  rmsnorm_forward(x.data(), gamma.data(), y.data(), rstd.data(), tokens, width, epsilon);
  expect_close(y, naive_rmsnorm(widen(x), widen(gamma)), 2e-5, "y");
}

TEST_P(Normalisation, RmsNormGradientsAreDerivatives) {
  rmsnorm_forward(x.data(), gamma.data(), y.data(), rstd.data(), tokens, width, epsilon);
  rmsnorm_backward_input(dy.data(), x.data(), gamma.data(), rstd.data(), dx.data(), tokens, width, false);
  rmsnorm_backward_weight(dy.data(), x.data(), rstd.data(), dgamma.data(), tokens, width, false);
  const Doubles wx = widen(x), wgamma = widen(gamma), weights = widen(dy);
  FiniteDifferences{[&](const Doubles& v) { return naive_rmsnorm(v, wgamma); }, weights}.expect_gradient(dx, wx, 1e-4,
                                                                                                         "dx");
  FiniteDifferences{[&](const Doubles& v) { return naive_rmsnorm(wx, v); }, weights}.expect_gradient(dgamma, wgamma,
                                                                                                     1e-4, "dgamma");
}

TEST_P(Normalisation, AccumulateAddsWhatOverwriteGives) {
  layernorm_forward(x.data(), gamma.data(), beta.data(), y.data(), mean.data(), rstd.data(), tokens, width, epsilon);
  const auto check = [](Floats overwritten, const auto& run) {
    const Floats before = random_floats(static_cast<int64_t>(overwritten.size()), 9);
    Floats added = before;
    run(overwritten.data(), false);
    run(added.data(), true);
    for (size_t i = 0; i < before.size(); ++i) ASSERT_EQ(added[i], before[i] + overwritten[i]) << i;
  };
  check(dx, [&](float* to, bool accumulate) {
    layernorm_backward_input(dy.data(), x.data(), gamma.data(), mean.data(), rstd.data(), to, tokens, width,
                             accumulate);
  });
  check(dgamma, [&](float* to, bool accumulate) {
    Floats other = beta;
    layernorm_backward_weight(dy.data(), x.data(), mean.data(), rstd.data(), to, other.data(), tokens, width,
                              accumulate);
  });
  check(dbeta, [&](float* to, bool accumulate) {
    Floats other = gamma;
    layernorm_backward_weight(dy.data(), x.data(), mean.data(), rstd.data(), other.data(), to, tokens, width,
                              accumulate);
  });
  rmsnorm_forward(x.data(), gamma.data(), y.data(), rstd.data(), tokens, width, epsilon);
  check(dx, [&](float* to, bool accumulate) {
    rmsnorm_backward_input(dy.data(), x.data(), gamma.data(), rstd.data(), to, tokens, width, accumulate);
  });
  check(dgamma, [&](float* to, bool accumulate) {
    rmsnorm_backward_weight(dy.data(), x.data(), rstd.data(), to, tokens, width, accumulate);
  });
}

TEST_P(Normalisation, GradientMayReplaceItsSource) {
  layernorm_forward(x.data(), gamma.data(), beta.data(), y.data(), mean.data(), rstd.data(), tokens, width, epsilon);
  layernorm_backward_input(dy.data(), x.data(), gamma.data(), mean.data(), rstd.data(), dx.data(), tokens, width,
                           false);
  Floats in_place = dy;
  layernorm_backward_input(in_place.data(), x.data(), gamma.data(), mean.data(), rstd.data(), in_place.data(), tokens,
                           width, false);
  EXPECT_TRUE(same_bits(dx, in_place));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Normalisation,
                         testing::Combine(testing::Values(1, 5), testing::Values(1, 3, 17, 64, 65, 320)),
                         [](const auto& instance) {
                           return "tokens" + std::to_string(std::get<0>(instance.param)) + "_width" +
                                  std::to_string(std::get<1>(instance.param));
                         });

}  // namespace
}  // namespace shardpipe::kernels::test
