// y = x · weightᵀ + bias, the weight stored [out, in] as PyTorch's nn.Linear does. Activations and parameters are
// stored as T (tensor/dtype.h) and multiplied as kernels/cpu/gemm.h says; gradients of parameters are fp32.
#pragma once
#include <cstdint>
#include <type_traits>

#include "tensor/dtype.h"

namespace shardpipe::kernels {

// x [tokens, in], weight [out, in], bias [out] or null, residual [tokens, out] or null
// -> y [tokens, out] = (x · weightᵀ + bias) + residual, rounded to T once
template <Element T>
void linear_forward(const T* x, const T* weight, const std::type_identity_t<T>* bias,
                    const std::type_identity_t<T>* residual, T* y, int64_t tokens, int64_t in, int64_t out);
// dy [tokens, out], weight [out, in] -> dx [tokens, in], overwritten or added to
template <Element T>
void linear_backward_input(const T* dy, const T* weight, T* dx, int64_t tokens, int64_t in, int64_t out,
                           bool accumulate);
// dy [tokens, out], x [tokens, in] -> dweight [out, in] and dbias [out] (or null), overwritten or added to
template <Element T>
void linear_backward_weight(const T* dy, const T* x, float* dweight, float* dbias, int64_t tokens, int64_t in,
                            int64_t out, bool accumulate);

}  // namespace shardpipe::kernels
