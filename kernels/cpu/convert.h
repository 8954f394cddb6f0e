// Between fp32 and the types of 16 bits, as tensor/dtype.h says: to nearest even, NaN stays NaN. The arrays do not
// overlap.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace shardpipe::kernels {

void convert(const float* src, BFloat16* dst, int64_t count);
void convert(const float* src, Float16* dst, int64_t count);
void convert(const BFloat16* src, float* dst, int64_t count);
void convert(const Float16* src, float* dst, int64_t count);

}  // namespace shardpipe::kernels
