#include <kernels/cpu/activation.h>

#include <limits>

#include "kernels/check.h"

namespace shardpipe::kernels::test {
namespace {

Doubles map(const Doubles& x, const std::function<double(double)>& f) {
  Doubles y;
  for (const double value : x) y.push_back(f(value));
  return y;
}

double naive_gelu(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double naive_silu(double x) { return x / (1 + std::exp(-x)); }

Doubles naive_swiglu(const Doubles& gate, const Doubles& up) {
  Doubles y;
  for (size_t i = 0; i < gate.size(); ++i) y.push_back(naive_silu(gate[i]) * up[i]);
  return y;
}

class Activation : public testing::TestWithParam<int64_t> {
 protected:
  const int64_t count = GetParam();
  const Floats x = random_floats(count, 1, -6, 6), up = random_floats(count, 2), dy = random_floats(count, 3);
  Floats y = x, dx = x, dup = x;
};

TEST_P(Activation, GeluIsTheFormula) {
  gelu_forward(x.data(), y.data(), count);
  expect_close(y, map(widen(x), naive_gelu), 1e-6, "y");
}

TEST_P(Activation, GeluGradientIsTheDerivative) {
  gelu_backward_input(dy.data(), x.data(), dx.data(), y.data(), count);
  FiniteDifferences{[&](const Doubles& v) { return map(v, naive_gelu); }, widen(dy)}.expect_gradient(dx, widen(x), 1e-5,
                                                                                                     "dx");
  Floats forward(y.size());
  gelu_forward(x.data(), forward.data(), count);
  EXPECT_TRUE(same_bits(y, forward)) << "y is what the forward gives";
  Floats in_place = dy, value_in_place = x;
  gelu_backward_input(in_place.data(), value_in_place.data(), in_place.data(), value_in_place.data(), count);
  EXPECT_TRUE(same_bits(in_place, dx)) << "dx may be the same memory as dy";
  EXPECT_TRUE(same_bits(value_in_place, forward)) << "y may be the same memory as x";
}

TEST_P(Activation, SwigluIsTheFormula) {
  swiglu_forward(x.data(), up.data(), y.data(), count);
  expect_close(y, naive_swiglu(widen(x), widen(up)), 1e-6, "y");
}

TEST_P(Activation, SwigluGradientsAreDerivatives) {
  swiglu_backward_input(dy.data(), x.data(), up.data(), dx.data(), dup.data(), y.data(), count);
  Floats forward(y.size());
  swiglu_forward(x.data(), up.data(), forward.data(), count);
  EXPECT_TRUE(same_bits(y, forward)) << "y is what the forward gives";
  Floats dgate = x, value_in_place = x;
  swiglu_backward_input(dy.data(), value_in_place.data(), up.data(), dgate.data(), dup.data(), value_in_place.data(),
                        count);
  EXPECT_TRUE(same_bits(dgate, dx) && same_bits(value_in_place, forward)) << "y may be the same memory as gate";
  const Doubles gate = widen(x), wide_up = widen(up);
  FiniteDifferences{[&](const Doubles& v) { return naive_swiglu(v, wide_up); }, widen(dy)}.expect_gradient(
      dx, gate, 1e-5, "dgate");
  FiniteDifferences{[&](const Doubles& v) { return naive_swiglu(gate, v); }, widen(dy)}.expect_gradient(dup, wide_up,
                                                                                                        1e-5, "dup");
}

TEST_P(Activation, AddAdds) {
  y = up;
  add(x.data(), y.data(), count);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], up[i] + x[i]);
}

INSTANTIATE_TEST_SUITE_P(Counts, Activation, testing::Values(1, 3, 17, 65, 320), testing::PrintToStringParamName());

TEST(ActivationExtremes, NeitherOverflowNorHideNotANumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Floats x = {-infinity, -1e4f, -100, 0, 100, 1e4f, infinity, NAN};
  const int64_t count = static_cast<int64_t>(x.size());
  const Floats ones(x.size(), 1.0f);
  Floats y(x.size()), dgate = y, dup = y;
  gelu_forward(x.data(), y.data(), count);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 0);
  EXPECT_EQ(y[3], 0);
  EXPECT_EQ(y[4], 100);
  EXPECT_EQ(y[5], 1e4f);
  EXPECT_TRUE(std::isnan(y[7]));
  gelu_backward_input(ones.data(), x.data(), dgate.data(), y.data(), count);
  EXPECT_EQ(dgate[1], 0);
  EXPECT_EQ(dgate[3], 0.5f);
  EXPECT_EQ(dgate[5], 1);
  EXPECT_TRUE(std::isnan(dgate[7]));
  swiglu_forward(x.data(), ones.data(), y.data(), count);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[5], 1e4f);
  EXPECT_TRUE(std::isnan(y[7]));
  swiglu_backward_input(ones.data(), x.data(), ones.data(), dgate.data(), dup.data(), y.data(), count);
  EXPECT_EQ(dgate[1], 0);
  EXPECT_EQ(dgate[5], 1);
  EXPECT_TRUE(std::isnan(dgate[7]));
}

}  // namespace
}  // namespace shardpipe::kernels::test
