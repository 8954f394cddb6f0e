// Rotary position embedding (Su et al., arXiv:2104.09864) in the half-split form of Hugging Face's Llama: element d is
// paired with d + head_dim/2, angle = position · theta^(-2d/head_dim). Angles are computed in double, then rounded to
// fp32, as the table stays; x is rotated in fp32 and stored as T (tensor/dtype.h).
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace shardpipe::kernels {

// Fills cos, sin [sequence, head_dim/2].
void rotary_table(float* cosines, float* sines, int64_t sequence, int64_t head_dim, double theta);
// Rotates x in place: [batch, sequence, heads, head_dim], consecutive tokens `stride` elements apart, heads packed.
template <Element T>
void rotary_forward(T* x, int64_t stride, const float* cosines, const float* sines, int64_t batch, int64_t sequence,
                    int64_t heads, int64_t head_dim);
// The transpose of forward: rotates the gradient back, in place.
template <Element T>
void rotary_backward_input(T* dx, int64_t stride, const float* cosines, const float* sines, int64_t batch,
                           int64_t sequence, int64_t heads, int64_t head_dim);

}  // namespace shardpipe::kernels
