#include "kernels/cpu/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/exact_sum.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

using Doubles = hn::ScalableTag<double>;
using Integers = hn::RebindToSigned<Doubles>;

int64_t add_quanta(const float* x, int64_t* sum, int64_t count, bool accumulate, double quanta_of_one,
                   double largest_quanta) {
  const Doubles d;
  const Integers integers;
  const hn::Rebind<float, Doubles> narrow;
  // Near 1.5 · 2^52 the last place of a double is 1: adding it rounds to an integer, to nearest even, and the integer
  // is then the difference of the two bit patterns. Right from -2^51 to 2^51, both included.
  const auto rounder = hn::Set(d, 0x1.8p52);
  const auto scale = hn::Set(d, quanta_of_one);
  const auto largest = hn::Set(d, largest_quanta);
  auto in_range_count = hn::Zero(integers);  // negative: a true mask is -1
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    const auto quanta = hn::Mul(hn::PromoteTo(d, lanes.load(narrow, x + i)), scale);  // exact: 24 bits, a power of 2
    const auto in_range = hn::Le(hn::Abs(quanta), largest);                           // false for NaN
    const auto rounded = hn::Add(hn::IfThenElseZero(in_range, quanta), rounder);
    auto result = hn::Sub(hn::BitCast(integers, rounded), hn::BitCast(integers, rounder));
    if (accumulate) result = hn::Add(lanes.load(integers, sum + i), result);
    lanes.store(result, integers, sum + i);
    in_range_count = hn::Add(in_range_count, hn::BitCast(integers, hn::VecFromMask(d, in_range)));
  });
  // the lanes beyond the last element hold 0, which is in range
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t visited = (count + lanes - 1) / lanes * lanes;
  return visited + hn::GetLane(hn::SumOfLanes(integers, in_range_count));
}

void sum_integers(const int64_t* const* in, int64_t inputs, int64_t* out, int64_t count, bool accumulate) {
  const Integers d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    auto sum = inputs > 0 ? lanes.load(d, in[0] + i) : hn::Zero(d);
    for (int64_t input = 1; input < inputs; ++input) sum = hn::Add(sum, lanes.load(d, in[input] + i));
    if (accumulate) sum = hn::Add(lanes.load(d, out + i), sum);
    lanes.store(sum, d, out + i);
  });
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

HWY_EXPORT(add_quanta);
HWY_EXPORT(sum_integers);

static int largest_quanta_log2(const ExactForm& form) {
  check_invariant(form.quantum_log2 >= -126 && form.quantum_log2 <= 64,
                  "exact sums: a quantum of 2^{}, not 2^-126 … 2^64", form.quantum_log2);
  check_invariant(form.contributions >= 1 && form.contributions <= int64_t{1} << 40,
                  "exact sums: {} contributions, not 1 … 2^40", form.contributions);
  const auto contributions_log2 = static_cast<int>(std::bit_width(static_cast<uint64_t>(form.contributions - 1)));
  return std::min(51, 62 - contributions_log2);
}

int exact_range_log2(const ExactForm& form) { return form.quantum_log2 + largest_quanta_log2(form); }

int64_t exact_add(const ExactForm& form, const float* x, int64_t* sum, int64_t count, bool accumulate) {
  const double largest = std::ldexp(1.0, largest_quanta_log2(form));
  return HWY_DYNAMIC_DISPATCH(add_quanta)(x, sum, count, accumulate, std::ldexp(1.0, -form.quantum_log2), largest);
}
void sum_in_order(const int64_t* const* in, int64_t inputs, int64_t* out, int64_t count, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(sum_integers)(in, inputs, out, count, accumulate);
}
void exact_to_float(const ExactForm& form, const int64_t* sum, float* out, int64_t count) {
  largest_quanta_log2(form);
  const float quantum = std::ldexp(1.0f, form.quantum_log2);
  // Every processor converts one integer at a time with a single rounding, as fast as AVX2 could convert four; a power
  // of two then changes the exponent only, because no result is subnormal.
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(sum[i]) * quantum;
}

}  // namespace shardpipe::kernels
#endif
