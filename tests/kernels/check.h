// Tools of the kernel tests: seeded random values, closeness, and gradients by finite differences in double.
#pragma once
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "tensor/dtype.h"

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

// Values that a 16-bit type holds, and the same as floats.
template <HalfElement T>
struct Both {
  std::vector<T> half;
  Floats full;

  explicit Both(size_t count) : half(count), full(count) {}
  explicit Both(const Floats& values) {
    for (const float value : values) {
      half.push_back(from_float<T>(value));
      full.push_back(to_float(half.back()));
    }
  }
};

template <HalfElement T>
Both<T> random_both(int64_t count, uint32_t seed, float low = -1, float high = 1) {
  return Both<T>(random_floats(count, seed, low, high));
}

// Bit for bit; where both are NaN, whatever their payloads.
template <HalfElement T>
bool is_rounded(const std::vector<T>& half, const Floats& full) {
  if (half.size() != full.size()) return false;
  for (size_t i = 0; i < half.size(); ++i) {
    const bool both_nan = std::isnan(to_float(half[i])) && std::isnan(full[i]);
    if (!both_nan && half[i] != from_float<T>(full[i])) return false;
  }
  return true;
}
template <HalfElement T>
bool is_rounded(const Both<T>& both) {
  return is_rounded(both.half, both.full);
}

// body() once with each instruction set that the binary holds and this machine has.
template <class Body>
void on_every_target(const Body& body) {
  const auto restrict_to = [](int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    restrict_to(target);
    body();
  }
  restrict_to(0);  // all
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
