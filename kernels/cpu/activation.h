// The feed-forward non-linearities. Elementwise: the bits of an element do not depend on its place in the array.
#pragma once
#include <cstdint>

namespace shardpipe::kernels {

// GELU in GPT-2's tanh form (Hendrycks & Gimpel, arXiv:1606.08415): y = x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³)))
void gelu_forward(const float* x, float* y, int64_t count);
// dx = dy · gelu'(x); dx may be the same memory as dy. On the way also y, the bits of gelu_forward, for the weight
// gradient of the linear behind it; y may be the same memory as x.
void gelu_backward_input(const float* dy, const float* x, float* dx, float* y, int64_t count);

// SwiGLU (Shazeer, arXiv:2002.05202): y = silu(gate) · up, silu(x) = x / (1 + e^-x)
void swiglu_forward(const float* gate, const float* up, float* y, int64_t count);
// On the way also y, the bits of swiglu_forward; y may be the same memory as gate.
void swiglu_backward_input(const float* dy, const float* gate, const float* up, float* dgate, float* dup, float* y,
                           int64_t count);

// y += x, elementwise: residual connections and sums of gradients
void add(const float* x, float* y, int64_t count);

}  // namespace shardpipe::kernels
