// Layer normalisation (Ba et al. 2016, arXiv:1607.06450) over the last dimension. Computed in
// fp32; activations, gamma and beta are stored as T (tensor/dtype.h), statistics and gradients of parameters as fp32.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace shardpipe::kernels {

// x [tokens, width] -> y [tokens, width] = (x - mean) · rstd · gamma + beta; mean, rstd [tokens] are kept for backward
template <Element T>
void layernorm_forward(const T* x, const T* gamma, const T* beta, T* y, float* mean, float* rstd, int64_t tokens,
                       int64_t width, float epsilon);
// dy [tokens, width] -> dx [tokens, width], overwritten or added to (the residual path); dx may be the same memory as
// dy only when it is overwritten
template <Element T>
void layernorm_backward_input(const T* dy, const T* x, const T* gamma, const float* mean, const float* rstd, T* dx,
                              int64_t tokens, int64_t width, bool accumulate);
// dgamma, dbeta [width], overwritten or added to; tokens are summed in ascending order
template <Element T>
void layernorm_backward_weight(const T* dy, const T* x, const float* mean, const float* rstd, float* dgamma,
                               float* dbeta, int64_t tokens, int64_t width, bool accumulate);

}  // namespace shardpipe::kernels
