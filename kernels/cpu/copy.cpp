#include "kernels/cpu/copy.h"

#include <hwy/cache_control.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/copy.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

void copy_past_caches(const std::byte* src, std::byte* dst, int64_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t line = 64;  // whole cache lines are written, so that none has to be read
  const auto misplaced = static_cast<int64_t>(reinterpret_cast<uintptr_t>(dst) % line);
  const int64_t head = std::min(bytes, misplaced == 0 ? 0 : line - misplaced);
  std::copy_n(src, head, dst);
  const auto* const from = reinterpret_cast<const uint8_t*>(src);
  auto* const to = reinterpret_cast<uint8_t*>(dst);
  int64_t i = head;
  for (; i + line <= bytes; i += line) {
    for (int64_t lane = 0; lane < line; lane += lanes) {
      hn::Stream(hn::LoadU(d, from + i + lane), d, to + i + lane);
    }
  }
  std::copy_n(src + i, bytes - i, dst + i);
  hwy::FlushStream();
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

HWY_EXPORT(copy_past_caches);

void copy_past_caches(const std::byte* src, std::byte* dst, int64_t bytes) {
  HWY_DYNAMIC_DISPATCH(copy_past_caches)(src, dst, bytes);
}

}  // namespace shardpipe::kernels
#endif
