// The feed-forward non-linearities. Elementwise: the bits of an element do not depend on its place in the array.
// Computed in fp32, stored as T (tensor/dtype.h).
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace shardpipe::kernels {

// GELU in GPT-2's tanh form (Hendrycks & Gimpel, arXiv:1606.08415): y = x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³)))
template <Element T>
void gelu_forward(const T* x, T* y, int64_t count);
// dx = dy · gelu'(x); dx may be the same memory as dy. On the way also y, the bits of gelu_forward, for the weight
// gradient of the linear behind it; y may be the same memory as x.
template <Element T>
void gelu_backward_input(const T* dy, const T* x, T* dx, T* y, int64_t count);

// SwiGLU (Shazeer, arXiv:2002.05202): y = silu(gate) · up, silu(x) = x / (1 + e^-x)
template <Element T>
void swiglu_forward(const T* gate, const T* up, T* y, int64_t count);
// On the way also y, the bits of swiglu_forward; y may be the same memory as gate.
template <Element T>
void swiglu_backward_input(const T* dy, const T* gate, const T* up, T* dgate, T* dup, T* y, int64_t count);

// y += x, elementwise: residual connections and sums of activations' gradients
template <Element T>
void add(const T* x, T* y, int64_t count);
// sum += x, elementwise, exact sums rounded to fp32: what parameters' gradients are added up in
template <Element T>
void add_to_sum(const T* x, float* sum, int64_t count);

}  // namespace shardpipe::kernels
