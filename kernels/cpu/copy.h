// A copy that leaves the caches to others: for what is far larger than they are and is read later, once.
#pragma once
#include <cstddef>
#include <cstdint>

namespace shardpipe::kernels {

// dst[bytes] = src[bytes], by stores that do not first read what they overwrite. Other threads may read dst once they
// know of this call's return. The arrays do not overlap.
void copy_past_caches(const std::byte* src, std::byte* dst, int64_t bytes);

}  // namespace shardpipe::kernels
