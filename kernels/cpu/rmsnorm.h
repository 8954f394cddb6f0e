// Root-mean-square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467) over the last dimension.
#pragma once
#include <cstdint>

namespace shardpipe::kernels {

// x [tokens, width] -> y = x · rstd · gamma, rstd = 1 / sqrt(mean(x²) + epsilon); rstd [tokens] is kept for backward
void rmsnorm_forward(const float* x, const float* gamma, float* y, float* rstd, int64_t tokens, int64_t width,
                     float epsilon);
// dy -> dx [tokens, width], overwritten or added to
void rmsnorm_backward_input(const float* dy, const float* x, const float* gamma, const float* rstd, float* dx,
                            int64_t tokens, int64_t width, bool accumulate);
// dgamma [width], overwritten or added to; tokens are summed in ascending order
void rmsnorm_backward_weight(const float* dy, const float* x, const float* rstd, float* dgamma, int64_t tokens,
                             int64_t width, bool accumulate);

}  // namespace shardpipe::kernels
