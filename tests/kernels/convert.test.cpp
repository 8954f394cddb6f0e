#include <kernels/cpu/convert.h>

#include "kernels/check.h"

namespace shardpipe::kernels::test {
namespace {

template <class T>
class Convert : public testing::Test {
 protected:
  static std::vector<T> all() {
    std::vector<T> values;
    for (uint32_t bits = 0; bits < 65536; ++bits) values.push_back({static_cast<uint16_t>(bits)});
    return values;
  }
  // A signalling NaN may become a quiet one.
  static uint16_t quiet(T half) { return std::isnan(to_float(half)) ? from_float<T>(to_float(half)).bits : half.bits; }
};
using Types = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(Convert, Types);

TYPED_TEST(Convert, EveryValueBecomesItsFloatAndComesBackOnEveryInstructionSet) {
  const std::vector<TypeParam> half = TestFixture::all();
  on_every_target([&] {
    for (const size_t piece : {half.size(), size_t{13}, size_t{1}}) {  // whole vectors, and what is left beside them
      Floats widened(half.size());
      std::vector<TypeParam> back(half.size());
      for (size_t i = 0; i < half.size(); i += piece) {
        const auto count = static_cast<int64_t>(std::min(piece, half.size() - i));
        convert(half.data() + i, widened.data() + i, count);
        convert(widened.data() + i, back.data() + i, count);
      }
      for (size_t i = 0; i < half.size(); ++i) {
        const float expected = to_float(half[i]);
        const bool both_nan = std::isnan(expected) && std::isnan(widened[i]);
        ASSERT_TRUE(both_nan || std::memcmp(&widened[i], &expected, sizeof(float)) == 0) << half[i].bits;
        ASSERT_EQ(back[i].bits, TestFixture::quiet(half[i]));
      }
    }
  });
}

// Around every value: the floats beside it, half way to the next, and beside that; and NaNs of all kinds of payload.
TYPED_TEST(Convert, FloatsAreRoundedAsOneByOneOnEveryInstructionSet) {
  Floats values;
  for (const TypeParam half : TestFixture::all()) {
    const auto next = TypeParam{static_cast<uint16_t>(half.bits + 1)};
    const float value = to_float(half), half_way = value / 2 + to_float(next) / 2;
    for (const float exact : {value, half_way}) {
      values.insert(values.end(), {exact, std::nextafter(exact, -INFINITY), std::nextafter(exact, INFINITY)});
    }
  }
  for (uint32_t bit = 0; bit < 23; ++bit) {
    for (const uint32_t sign : {0u, 0x80000000u})
      values.push_back(std::bit_cast<float>(sign | 0x7F800000u | 1u << bit));
  }
  on_every_target([&] {
    std::vector<TypeParam> found(values.size() + 1, TypeParam{0x1234});
    convert(values.data(), found.data(), static_cast<int64_t>(values.size()));
    EXPECT_EQ(found.back().bits, 0x1234) << "written beyond the end";
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(found[i].bits, from_float<TypeParam>(values[i]).bits) << std::bit_cast<uint32_t>(values[i]);
    }
  });
}

}  // namespace
}  // namespace shardpipe::kernels::test
