// Layer normalisation (Ba et al. 2016, arXiv:1607.06450) over the last dimension.
#pragma once
#include <cstdint>

namespace shardpipe::kernels {

// x [tokens, width] -> y [tokens, width] = (x - mean) · rstd · gamma + beta; mean, rstd [tokens] are kept for backward
void layernorm_forward(const float* x, const float* gamma, const float* beta, float* y, float* mean, float* rstd,
                       int64_t tokens, int64_t width, float epsilon);
// dy [tokens, width] -> dx [tokens, width], overwritten or added to (the residual path); dx may be the same memory as
// dy only when it is overwritten
void layernorm_backward_input(const float* dy, const float* x, const float* gamma, const float* mean, const float* rstd,
                              float* dx, int64_t tokens, int64_t width, bool accumulate);
// dgamma, dbeta [width], overwritten or added to; tokens are summed in ascending order
void layernorm_backward_weight(const float* dy, const float* x, const float* mean, const float* rstd, float* dgamma,
                               float* dbeta, int64_t tokens, int64_t width, bool accumulate);

}  // namespace shardpipe::kernels
