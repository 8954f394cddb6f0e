// Token (and, for GPT-2, learned position) embedding. The sum of the two is formed in fp32, and stored as T
// (tensor/dtype.h); gradients of parameters are fp32.
#pragma once
#include <cstdint>
#include <type_traits>

#include "tensor/dtype.h"

namespace shardpipe::kernels {

// out [batch·sequence, width] = table[token] (+ positions[position in the sequence], when positions is not null).
// Throws std::out_of_range that names the token, its place and the vocabulary when a token is not in [0, vocabulary).
template <Element T>
void embedding_forward(const int32_t* tokens, const T* table, const std::type_identity_t<T>* positions, T* out,
                       int64_t batch, int64_t sequence, int64_t width, int64_t vocabulary);
// dtable [vocabulary, width], dpositions [maximum_sequence, width] (or null): overwritten (rows that no token names
// become zero) or added to; tokens are summed in ascending order
template <Element T>
void embedding_backward_weight(const int32_t* tokens, const T* dout, float* dtable, float* dpositions, int64_t batch,
                               int64_t sequence, int64_t maximum_sequence, int64_t width, int64_t vocabulary,
                               bool accumulate);

}  // namespace shardpipe::kernels
