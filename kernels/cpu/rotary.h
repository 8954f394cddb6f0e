// Rotary position embedding (Su et al., arXiv:2104.09864) in the half-split form of Hugging Face's Llama: element d is
// paired with d + head_dim/2, angle = position · theta^(-2d/head_dim). Angles are computed in double, then rounded.
#pragma once
#include <cstdint>

namespace shardpipe::kernels {

// Fills cos, sin [sequence, head_dim/2].
void rotary_table(float* cosines, float* sines, int64_t sequence, int64_t head_dim, double theta);
// Rotates x in place: [batch, sequence, heads, head_dim], consecutive tokens `stride` elements apart, heads packed.
void rotary_forward(float* x, int64_t stride, const float* cosines, const float* sines, int64_t batch, int64_t sequence,
                    int64_t heads, int64_t head_dim);
// The transpose of forward: rotates the gradient back, in place.
void rotary_backward_input(float* dx, int64_t stride, const float* cosines, const float* sines, int64_t batch,
                           int64_t sequence, int64_t heads, int64_t head_dim);

}  // namespace shardpipe::kernels
