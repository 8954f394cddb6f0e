// Root-mean-square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467) over the last dimension. Computed in
// fp32; activations, gamma and beta are stored as T (tensor/dtype.h), statistics and gradients of parameters as fp32.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace shardpipe::kernels {

// x [tokens, width] -> y = x · rstd · gamma, rstd = 1 / sqrt(mean(x²) + epsilon); rstd [tokens] is kept for backward
template <Element T>
void rmsnorm_forward(const T* x, const T* gamma, T* y, float* rstd, int64_t tokens, int64_t width, float epsilon);
// dy -> dx [tokens, width], overwritten or added to
template <Element T>
void rmsnorm_backward_input(const T* dy, const T* x, const T* gamma, const float* rstd, T* dx, int64_t tokens,
                            int64_t width, bool accumulate);
// dgamma [width], overwritten or added to; tokens are summed in ascending order
template <Element T>
void rmsnorm_backward_weight(const T* dy, const T* x, const float* rstd, float* dgamma, int64_t tokens, int64_t width,
                             bool accumulate);

}  // namespace shardpipe::kernels
