#include "kernels/cpu/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

template <Element T>
void narrow(const float* src, T* dst, int64_t count) {
  const hn::ScalableTag<float> d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR { lanes.store(lanes.load(d, src + i), d, dst + i); });
}
template <Element T>
void widen(const T* src, float* dst, int64_t count) {
  const hn::ScalableTag<float> d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR { lanes.store(lanes.load(d, src + i), d, dst + i); });
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

SHARDPIPE_EXPORT(narrow);
SHARDPIPE_EXPORT(widen);

void convert(const float* src, BFloat16* dst, int64_t count) { SHARDPIPE_DISPATCH(narrow, BFloat16)(src, dst, count); }
void convert(const float* src, Float16* dst, int64_t count) { SHARDPIPE_DISPATCH(narrow, Float16)(src, dst, count); }
void convert(const BFloat16* src, float* dst, int64_t count) { SHARDPIPE_DISPATCH(widen, BFloat16)(src, dst, count); }
void convert(const Float16* src, float* dst, int64_t count) { SHARDPIPE_DISPATCH(widen, Float16)(src, dst, count); }

}  // namespace shardpipe::kernels
#endif
