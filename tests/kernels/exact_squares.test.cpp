#include "kernels/cpu/exact_squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace shardpipe::kernels {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// Multiples of the quantum of many sizes: what exact_to_float gives.
std::vector<float> rounded_sums(const ExactForm& form, size_t count, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> sums(count);
  for (int64_t& sum : sums) sum = static_cast<int64_t>(random()) >> (2 + random() % 50);
  std::vector<float> values(count);
  exact_to_float(form, sums.data(), values.data(), static_cast<int64_t>(count));
  return values;
}

double squares(const ExactForm& form, const std::vector<float>& x) {
  return squares_of_words(form, exact_squares(form, x.data(), static_cast<int64_t>(x.size())));
}

TEST(ExactSquares, DoNotDependOnCutsAndOrders) {
  for (const int quantum_log2 : {-126, -30, -14, 64}) {
    const ExactForm form{.quantum_log2 = quantum_log2};
    const std::vector<float> x = rounded_sums({.quantum_log2 = -30}, 1000, 3);
    std::vector<float> scaled;
    for (const float value : x) scaled.push_back(std::ldexp(value, quantum_log2 + 30));
    const double whole = squares(form, scaled);
    for (const size_t parts : {2, 3, 7, 1000}) {
      SquareWords words{};
      for (size_t part = parts; part-- > 0;) {
        const size_t begin = scaled.size() * part / parts, end = scaled.size() * (part + 1) / parts;
        add_words(exact_squares(form, scaled.data() + begin, static_cast<int64_t>(end - begin)).data(), words);
      }
      EXPECT_EQ(squares_of_words(form, words), whole) << parts << " parts, quantum 2^" << quantum_log2;
    }
    long double reference = 0;  // 64 bits of which none but the last few are lost
    for (const float value : scaled) reference += static_cast<long double>(value) * static_cast<long double>(value);
    EXPECT_NEAR(whole / static_cast<double>(reference), 1, 1e-15);
  }
}

TEST(ExactSquares, LoseNoSmallTermBesideALargeOne) {
  const ExactForm form;
  // 2^52 + 1 squares of the quantum are exact in a double; a sum of doubles of the squares themselves would lose the 1.
  const std::vector<float> x{0x1p-4f, 0x1p-30f, -0x1p-30f};
  EXPECT_EQ(squares(form, x), 0x1p-8 + 0x1p-59);
  EXPECT_EQ(squares(form, {}), 0);
  EXPECT_EQ(squares(form, {-0.0f, 0.0f}), 0);
  EXPECT_EQ(squares(form, {-3.0f}), 9);
}

TEST(ExactSquares, AreInfiniteFrom128BitsOnHoweverTheyAreCut) {
  const ExactForm form;
  const std::vector<float> largest(15, 0x1p32f);  // 2^62 quanta each: 15 · 2^124
  EXPECT_EQ(squares(form, largest), 15 * 0x1p64);
  std::vector<float> more = largest;
  more.push_back(0x1p32f);
  EXPECT_EQ(squares(form, more), infinity);
  SquareWords words{};
  for (const float& value : more) add_words(exact_squares(form, &value, 1).data(), words);
  EXPECT_EQ(squares_of_words(form, words), infinity);
  add_words(exact_squares(form, more.data(), 16).data(), words);
  EXPECT_EQ(squares_of_words(form, words), infinity);
}

TEST(ExactSquares, OfWhatNoExactSumGivesAreInfinite) {
  for (const float wrong : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 0x1p-31f, 0x1p33f})
    EXPECT_EQ(squares({}, {1.0f, wrong, 2.0f}), infinity) << wrong;
}

}  // namespace
}  // namespace shardpipe::kernels
