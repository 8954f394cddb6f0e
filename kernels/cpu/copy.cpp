#include "kernels/cpu/copy.h"

#include <hwy/cache_control.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/copy.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

void copy_past_caches(const float* src, float* dst, int64_t count) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t line_floats = 16;  // whole cache lines are written, so that none has to be read
  const auto misplaced = static_cast<int64_t>(reinterpret_cast<uintptr_t>(dst) / sizeof(float) % line_floats);
  const int64_t head = std::min(count, misplaced == 0 ? 0 : line_floats - misplaced);
  std::copy_n(src, head, dst);
  int64_t i = head;
  for (; i + line_floats <= count; i += line_floats) {
    for (int64_t lane = 0; lane < line_floats; lane += lanes) {
      hn::Stream(hn::LoadU(d, src + i + lane), d, dst + i + lane);
    }
  }
  std::copy_n(src + i, count - i, dst + i);
  hwy::FlushStream();
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

HWY_EXPORT(copy_past_caches);

void copy_past_caches(const float* src, float* dst, int64_t count) {
  HWY_DYNAMIC_DISPATCH(copy_past_caches)(src, dst, count);
}

}  // namespace shardpipe::kernels
#endif
