// What happens to shards of parameters: elementwise, so that the bits of an element do not depend on how a tensor was
// cut.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace shardpipe::kernels {

struct AdamW {  // Loshchilov & Hutter, arXiv:1711.05101; the decay is decoupled, and applied first as PyTorch does
  float learning_rate;
  double beta1, beta2;  // double, because 1 - beta2 of a rounded beta2 is off by 1e-5 of itself
  float epsilon, weight_decay;
  float bias_correction1, bias_correction2;  // 1 - beta^step, computed in double
  float gradient_scale;  // clip factor / global tokens: the gradient that counts is scale · gradient
};
// parameter, gradient, m, v [count]; parameter, m and v are updated
void adamw_step(const AdamW&, float* parameter, const float* gradient, float* m, float* v, int64_t count);

struct Sgd {
  float learning_rate, weight_decay, gradient_scale;
};
void sgd_step(const Sgd&, float* parameter, const float* gradient, int64_t count);

// Σ x², in double, in an order that depends on count alone
double sum_of_squares(const float* x, int64_t count);

// out[i] = (accumulate ? out[i] : 0) + the sum of in[0][i], in[1][i], …: that of a collective. Neighbours first, then
// pairs of neighbours, and so on: ((0 + 1) + (2 + 3)) + (4 + 5). So a sum of groups of 2^k neighbours, each summed by
// itself, has the same bits. `out` may be one of the inputs when it is overwritten.
void sum_in_order(const float* const* in, int64_t inputs, float* out, int64_t count, bool accumulate);
void sum_in_order(const double* const* in, int64_t inputs, double* out, int64_t count, bool accumulate);
// The same of what was rounded to 16 bits to be sent; summed in fp32.
template <HalfElement T>
void sum_in_order(const T* const* in, int64_t inputs, float* out, int64_t count, bool accumulate);

// False when any element is infinite or not a number.
template <Element T>
bool all_finite(const T* x, int64_t count);

}  // namespace shardpipe::kernels
