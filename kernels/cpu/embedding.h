// Token (and, for GPT-2, learned position) embedding.
#pragma once
#include <cstdint>

namespace shardpipe::kernels {

// out [batch·sequence, width] = table[token] (+ positions[position in the sequence], when positions is not null).
// Throws std::out_of_range that names the token, its place and the vocabulary when a token is not in [0, vocabulary).
void embedding_forward(const int32_t* tokens, const float* table, const float* positions, float* out, int64_t batch,
                       int64_t sequence, int64_t width, int64_t vocabulary);
// dtable [vocabulary, width], dpositions [maximum_sequence, width] (or null): overwritten (rows that no token names
// become zero) or added to; tokens are summed in ascending order
void embedding_backward_weight(const int32_t* tokens, const float* dout, float* dtable, float* dpositions,
                               int64_t batch, int64_t sequence, int64_t maximum_sequence, int64_t width,
                               int64_t vocabulary, bool accumulate);

}  // namespace shardpipe::kernels
