#include <kernels/cpu/rotary.h>

#include <complex>

#include "kernels/check.h"

namespace shardpipe::kernels::test {
namespace {

class Rotary : public testing::TestWithParam<int64_t> {
 protected:
  static constexpr int64_t batch = 2, sequence = 5, heads = 3, gap = 4;
  static constexpr double theta = 10000;
  const int64_t head_dim = GetParam(), stride = heads * head_dim + gap;
  const Floats x = random_floats(batch * sequence * stride, 1);
  Floats cosines = Floats(static_cast<size_t>(sequence * head_dim / 2)), sines = cosines;

  void SetUp() override { rotary_table(cosines.data(), sines.data(), sequence, head_dim, theta); }

  // Pairs as complex numbers, turned by e^(i·angle).
  Doubles naive(const Floats& from, double direction) const {
    Doubles to = widen(from);
    for (int64_t token = 0; token < batch * sequence; ++token) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t i = 0; i < head_dim / 2; ++i) {
          const double angle = static_cast<double>(token % sequence) *
                               std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
          const size_t low = static_cast<size_t>(token * stride + head * head_dim + i);
          const size_t high = low + static_cast<size_t>(head_dim / 2);
          const std::complex<double> turned = std::complex(to[low], to[high]) * std::polar(1.0, direction * angle);
          to[low] = turned.real();
          to[high] = turned.imag();
        }
      }
    }
    return to;
  }
};

TEST_P(Rotary, ForwardTurnsPairsAndLeavesTheRest) {
  Floats y = x;
  rotary_forward(y.data(), stride, cosines.data(), sines.data(), batch, sequence, heads, head_dim);
  expect_close(y, naive(x, 1), 1e-6, "y");
}

TEST_P(Rotary, BackwardIsTheTranspose) {
  Floats dx = x;
  rotary_backward_input(dx.data(), stride, cosines.data(), sines.data(), batch, sequence, heads, head_dim);
  expect_close(dx, naive(x, -1), 1e-6, "dx");
}

INSTANTIATE_TEST_SUITE_P(HeadDims, Rotary, testing::Values(2, 8, 20, 64), testing::PrintToStringParamName());

}  // namespace
}  // namespace shardpipe::kernels::test
