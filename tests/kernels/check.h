// Tools of the kernel tests: seeded random values, closeness, and gradients by finite differences in double.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

namespace shardpipe::kernels::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline Floats random_floats(int64_t count, uint32_t seed, float low = -1, float high = 1) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(generator);
  return values;
}

inline Doubles widen(const Floats& values) { return Doubles(values.begin(), values.end()); }

inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Each element of `found` within `tolerance` of `expected`, relative to the largest expected element (at least 1).
inline void expect_close(const Floats& found, const Doubles& expected, double tolerance, const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double largest = 1;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(double{found[i]}, expected[i], tolerance * largest) << what << " element " << i;
  }
}

// Compares d(Σ weights · f(x)) / dx with central differences, at about `samples` elements.
struct FiniteDifferences {
  std::function<Doubles(const Doubles&)> function;
  Doubles weights;

  void expect_gradient(const Floats& gradient, Doubles x, double tolerance, const char* what,
                       size_t samples = 40) const {
    ASSERT_EQ(gradient.size(), x.size()) << what;
    const auto value = [&] {
      const Doubles y = function(x);
      double sum = 0;
      for (size_t i = 0; i < y.size(); ++i) sum += weights[i] * y[i];
      return sum;
    };
    double largest = 1;
    for (const float g : gradient) largest = std::max(largest, std::abs(double{g}));
    const size_t step = std::max<size_t>(1, x.size() / samples);
    for (size_t i = 0; i < x.size(); i += step) {
      const double kept = x[i];
      constexpr double h = 1e-5;
      x[i] = kept + h;
      const double above = value();
      x[i] = kept - h;
      const double below = value();
      x[i] = kept;
      ASSERT_NEAR(double{gradient[i]}, (above - below) / (2 * h), tolerance * largest) << what << " element " << i;
    }
  }
};

}  // namespace shardpipe::kernels::test
