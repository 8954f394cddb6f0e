#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace shardpipe {
namespace {

// What IEEE 754 says of a format, in slow double arithmetic that shares nothing with the header.
struct Format {
  int exponent_bits, fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
  // of a finite number without sign; of `infinity` the number that would come after the largest
  double value(uint32_t magnitude) const {
    const int exponent = static_cast<int>(magnitude >> fraction_bits);
    const double fraction = std::ldexp(magnitude & ((1u << fraction_bits) - 1), -fraction_bits);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias()) : std::ldexp(1 + fraction, exponent - bias());
  }
  uint16_t nearest(float x) const {
    const uint32_t sign = std::signbit(x) ? 0x8000u : 0;
    const double magnitude = std::abs(double{x});
    uint32_t below = 0, above = infinity();
    if (magnitude >= value(above)) return static_cast<uint16_t>(sign | above);
    while (above - below > 1) {
      const uint32_t middle = (below + above) / 2;
      (value(middle) <= magnitude ? below : above) = middle;
    }
    const double to_below = magnitude - value(below), to_above = value(above) - magnitude;
    const bool up = to_above < to_below || (to_above == to_below && below % 2 == 1);
    return static_cast<uint16_t>(sign | (up ? above : below));
  }
};

template <class T>
class HalfTypes : public testing::Test {
 protected:
  static constexpr bool is_bfloat16 = std::same_as<T, BFloat16>;
  static constexpr Format format = is_bfloat16 ? Format{8, 7} : Format{5, 10};

  static bool is_nan(uint32_t bits) { return (bits & 0x7FFF) > format.infinity(); }
  static uint16_t quiet(uint32_t bits) { return static_cast<uint16_t>(bits | 1u << (format.fraction_bits - 1)); }
  static std::vector<T> all() {
    std::vector<T> values;
    for (uint32_t bits = 0; bits < 65536; ++bits) values.push_back({static_cast<uint16_t>(bits)});
    return values;
  }
};
using Types = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfTypes, Types);

TYPED_TEST(HalfTypes, EveryValueBecomesTheFloatThatIeee754Says) {
  for (const TypeParam half : TestFixture::all()) {
    const uint32_t magnitude = half.bits & 0x7FFF;
    const float found = to_float(half);
    ASSERT_EQ(std::signbit(found), half.bits >= 0x8000) << half.bits;
    if (TestFixture::is_nan(half.bits)) {
      ASSERT_TRUE(std::isnan(found)) << half.bits;
    } else if (magnitude == TestFixture::format.infinity()) {
      ASSERT_TRUE(std::isinf(found)) << half.bits;
    } else {
      ASSERT_EQ(std::abs(double{found}), TestFixture::format.value(magnitude)) << half.bits;
    }
  }
}

TYPED_TEST(HalfTypes, EveryValueSurvivesTheRoundTrip) {
  for (const TypeParam half : TestFixture::all()) {
    const uint16_t expected = TestFixture::is_nan(half.bits) ? TestFixture::quiet(half.bits) : half.bits;
    ASSERT_EQ(from_float<TypeParam>(to_float(half)).bits, expected) << half.bits;
  }
}

// Around every value: it, half way to the next, and the floats on both sides of these.
TYPED_TEST(HalfTypes, TheNearestIsTakenAndOfTwoTheEvenOne) {
  for (uint32_t magnitude = 0; magnitude < TestFixture::format.infinity(); ++magnitude) {
    const double value = TestFixture::format.value(magnitude), next = TestFixture::format.value(magnitude + 1);
    const double half_way = value / 2 + next / 2;
    ASSERT_EQ(double{static_cast<float>(half_way)}, half_way);
    for (const float exact : {static_cast<float>(value), static_cast<float>(half_way)}) {
      for (const float near : {exact, std::nextafter(exact, -INFINITY), std::nextafter(exact, INFINITY)}) {
        for (const float x : {near, -near}) {
          ASSERT_EQ(from_float<TypeParam>(x).bits, TestFixture::format.nearest(x)) << x;
        }
      }
    }
  }
}

TYPED_TEST(HalfTypes, RandomFloatsAreRoundedAsTheReferenceDoes) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "random seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 200'000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x)) continue;
    ASSERT_EQ(from_float<TypeParam>(x).bits, TestFixture::format.nearest(x)) << x;
  }
}

// A payload in the lower bits alone must not be cut off to infinity, nor rounded up into another number.
TYPED_TEST(HalfTypes, NotANumberStaysSoWhateverItsPayload) {
  std::vector<uint32_t> payloads = {0x7FFFFF, 0x3FFFFF, 0x400000, 0x00FFFF, 0x007FFF, 0x008000, 0x018000};
  for (int bit = 0; bit < 23; ++bit) payloads.push_back(1u << bit);
  for (const uint32_t payload : payloads) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const uint16_t bits = from_float<TypeParam>(std::bit_cast<float>(sign | 0x7F800000u | payload)).bits;
      EXPECT_TRUE(TestFixture::is_nan(bits)) << payload;
      EXPECT_EQ(bits, TestFixture::quiet(bits)) << payload;
      EXPECT_EQ(bits >> 15, sign >> 31) << payload;
    }
  }
}

TYPED_TEST(HalfTypes, BeyondTheLargestIsInfinity) {
  const float infinity = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  EXPECT_EQ(to_float(from_float<TypeParam>(infinity)), infinity);
  EXPECT_EQ(to_float(from_float<TypeParam>(-largest)), -infinity);
}

TYPED_TEST(HalfTypes, EpsilonIsTheStepAboveOne) {
  const uint16_t one = from_float<TypeParam>(1.0f).bits;
  EXPECT_EQ(to_float(TypeParam{static_cast<uint16_t>(one + 1)}) - 1.0f, epsilon_of<TypeParam>);
}

TEST(DType, NamesSizesAndTypesBelongTogether) {
  const auto check = [](DType type, uint64_t bytes, std::string_view name) {
    EXPECT_EQ(bytes_of(type), bytes);
    EXPECT_EQ(to_string(type), name);
    EXPECT_EQ(with_element(type, []<Element T>() { return sizeof(T); }), bytes);
    EXPECT_EQ(with_element(type, []<Element T>() { return dtype_of<T>; }), type);
  };
  check(DType::Float32, 4, "fp32");
  check(DType::BFloat16, 2, "bf16");
  check(DType::Float16, 2, "fp16");
}

// Conversions of constants cost nothing.
static_assert(from_float<BFloat16>(1.0f).bits == 0x3F80 && from_float<Float16>(1.0f).bits == 0x3C00);
static_assert(to_float(Float16{0x0001}) == 0x1p-24f && to_float(BFloat16{0x4049}) == 3.140625f);

}  // namespace
}  // namespace shardpipe
