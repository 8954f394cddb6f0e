// y = x · weightᵀ + bias, the weight stored [out, in] as PyTorch's nn.Linear does.
#pragma once
#include <cstdint>

namespace shardpipe::kernels {

// x [tokens, in], weight [out, in], bias [out] or null -> y [tokens, out]
void linear_forward(const float* x, const float* weight, const float* bias, float* y, int64_t tokens, int64_t in,
                    int64_t out);
// dy [tokens, out], weight [out, in] -> dx [tokens, in], overwritten or added to
void linear_backward_input(const float* dy, const float* weight, float* dx, int64_t tokens, int64_t in, int64_t out,
                           bool accumulate);
// dy [tokens, out], x [tokens, in] -> dweight [out, in] and dbias [out] (or null), overwritten or added to
void linear_backward_weight(const float* dy, const float* x, float* dweight, float* dbias, int64_t tokens, int64_t in,
                            int64_t out, bool accumulate);

}  // namespace shardpipe::kernels
