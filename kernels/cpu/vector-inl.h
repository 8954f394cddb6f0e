// Vocabulary of the vector kernels, compiled once for each instruction set by Highway's foreach_target.
//
// A kernel writes its arithmetic once, as a body over "lanes": AllLanes in the bulk, SomeLanes in the tail. Both do the
// same operations on each element, so an element's bits depend neither on its place in the array nor on alignment.
// Vectors are of float; what is stored as bf16 or fp16 becomes float as it is loaded, and is rounded as it is stored.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/dispatch.h"
#include "tensor/dtype.h"

#if defined(SHARDPIPE_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARDPIPE_KERNELS_VECTOR_INL_H_
#undef SHARDPIPE_KERNELS_VECTOR_INL_H_
#else
#define SHARDPIPE_KERNELS_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

// Where masked loads and stores of float and double leave the other lanes' memory alone (AVX2 does for these two types,
// though not for all, which is why Highway itself says no).
#undef SHARDPIPE_MASKED_ACCESS
#define SHARDPIPE_MASKED_ACCESS (!HWY_MEM_OPS_MIGHT_FAULT || HWY_TARGET == HWY_AVX2)

// Where Highway converts fp16 with an instruction of the processor; what it does elsewhere truncates.
#undef SHARDPIPE_HALF_CONVERSIONS
#define SHARDPIPE_HALF_CONVERSIONS \
  (HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_SSSE3 && HWY_TARGET != HWY_SSE4)

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using ElementOf = hn::TFromD<D>;

// As many 16-bit elements as D has floats.
template <class D, HalfElement T>
HWY_INLINE hn::Vec<D> load_half(D d, const T* from) {
#if SHARDPIPE_HALF_CONVERSIONS
  if constexpr (std::same_as<T, BFloat16>) {
    const hn::Rebind<uint16_t, D> halves;
    const hn::RebindToUnsigned<D> words;
    const auto bits = hn::PromoteTo(words, hn::LoadU(halves, &from->bits));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  } else {
    const hn::Rebind<hwy::float16_t, D> halves;
    return hn::PromoteTo(d, hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(from)));
  }
#else
  HWY_ALIGN float widened[hn::MaxLanes(d)];
  for (size_t i = 0; i < hn::Lanes(d); ++i) widened[i] = to_float(from[i]);
  return hn::Load(d, widened);
#endif
}

// Rounds to nearest even; NaN stays NaN. (Highway's own conversion to bf16 truncates.)
template <class D, HalfElement T>
HWY_INLINE void store_half(hn::Vec<D> v, D d, T* to) {
#if SHARDPIPE_HALF_CONVERSIONS
  if constexpr (std::same_as<T, BFloat16>) {
    const hn::Rebind<uint16_t, D> halves;
    const hn::RebindToUnsigned<D> words;
    const hn::RebindToSigned<D> integers;
    const auto bits = hn::BitCast(words, v);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(words, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7FFF))));
    const auto quiet = hn::Or(upper, hn::Set(words, 0x40));
    const auto is_number = hn::RebindMask(words, hn::Eq(v, v));
    const auto result = hn::IfThenElse(is_number, rounded, quiet);
    hn::StoreU(hn::DemoteTo(halves, hn::BitCast(integers, result)), halves, &to->bits);
  } else {
    const hn::Rebind<hwy::float16_t, D> halves;
    hn::StoreU(hn::DemoteTo(halves, v), halves, reinterpret_cast<hwy::float16_t*>(to));
  }
#else
  HWY_ALIGN float stored[hn::MaxLanes(d)];
  hn::Store(v, d, stored);
  for (size_t i = 0; i < hn::Lanes(d); ++i) to[i] = from_float<T>(stored[i]);
#endif
}

// A whole vector of elements.
struct AllLanes {
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const ElementOf<D>* from) const {
    return hn::LoadU(d, from);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> load_or(D d, const ElementOf<D>* from, ElementOf<D>) const {
    return hn::LoadU(d, from);
  }
  template <class D>
  HWY_INLINE void store(hn::Vec<D> v, D d, ElementOf<D>* to) const {
    hn::StoreU(v, d, to);
  }
  template <class D, HalfElement T>
  HWY_INLINE hn::Vec<D> load(D d, const T* from) const {
    return load_half(d, from);
  }
  template <class D, HalfElement T>
  HWY_INLINE hn::Vec<D> load_or(D d, const T* from, float) const {
    return load_half(d, from);
  }
  template <class D, HalfElement T>
  HWY_INLINE void store(hn::Vec<D> v, D d, T* to) const {
    store_half(v, d, to);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> zero_others(D, hn::Vec<D> v) const {
    return v;
  }
};

// The first `count` elements of a vector: nothing beyond them is read or written.
struct SomeLanes {
  size_t count;

  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const ElementOf<D>* from) const {
#if !SHARDPIPE_MASKED_ACCESS
    return load_or(d, from, ElementOf<D>{0});
#else
    return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#endif
  }
  template <class D>
  HWY_INLINE hn::Vec<D> load_or(D d, const ElementOf<D>* from, ElementOf<D> other) const {
    HWY_ALIGN ElementOf<D> padded[hn::MaxLanes(d)];
    hn::Store(hn::Set(d, other), d, padded);
    for (size_t i = 0; i < count; ++i) padded[i] = from[i];
    return hn::Load(d, padded);
  }
  template <class D>
  HWY_INLINE void store(hn::Vec<D> v, D d, ElementOf<D>* to) const {
#if !SHARDPIPE_MASKED_ACCESS
    HWY_ALIGN ElementOf<D> padded[hn::MaxLanes(d)];
    hn::Store(v, d, padded);
    for (size_t i = 0; i < count; ++i) to[i] = padded[i];
#else
    hn::BlendedStore(v, hn::FirstN(d, count), d, to);
#endif
  }
  template <class D, HalfElement T>
  HWY_INLINE hn::Vec<D> load(D d, const T* from) const {
    HWY_ALIGN T padded[hn::MaxLanes(d)] = {};
    std::copy_n(from, count, padded);
    return load_half(d, padded);
  }
  template <class D, HalfElement T>
  HWY_INLINE hn::Vec<D> load_or(D d, const T* from, float other) const {
    return hn::IfThenElse(hn::FirstN(d, count), load(d, from), hn::Set(d, other));
  }
  template <class D, HalfElement T>
  HWY_INLINE void store(hn::Vec<D> v, D d, T* to) const {
    HWY_ALIGN T padded[hn::MaxLanes(d)];
    store_half(v, d, padded);
    std::copy_n(padded, count, to);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> zero_others(D d, hn::Vec<D> v) const {
    return hn::IfThenElseZero(hn::FirstN(d, count), v);
  }
};

// body(first element, lanes) over [0, count) in vectors.
template <class D, class Body>
HWY_INLINE void for_each_vector(D d, int64_t count, const Body& body) {
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + step <= count; i += step) body(i, AllLanes{});
  if (i < count) body(i, SomeLanes{static_cast<size_t>(count - i)});
}

// e^x within 2 units of the last place, for x <= 88: 0 below -87, infinity far above 88, and NaN stays NaN (Highway's
// Exp gives 0, which would hide an overflow). e^x = 2^n · e^r with n the nearest integer to x / ln 2, e^r by its Taylor
// series: |r| <= ln 2 / 2 makes the first term left out 5e-9.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exponential(D d, V x) {
  const hn::RebindToSigned<D> integers;
  const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504f)));
  const V whole = hn::ConvertTo(d, n);
  // ln 2 in two parts, the first with so few bits that n · 0.693359375 is exact
  V r = hn::NegMulAdd(whole, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(whole, hn::Set(d, -2.12194440e-4f), r);
  V series = hn::Set(d, 1.0f / 5040);
  for (const float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f}) {
    series = hn::MulAdd(series, r, hn::Set(d, coefficient));
  }
  const auto exponent = hn::Add(hn::Min(n, hn::Set(integers, 128)), hn::Set(integers, 127));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(series, power));
}

// 1 / (1 + e^-z), from e^-|z|, which overflows for no z.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid(D d, V z) {
  const V one = hn::Set(d, 1.0f);
  const V e = exponential(d, hn::Neg(hn::Abs(z)));
  const V numerator = hn::IfThenElse(hn::Lt(z, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // toggled include guard
