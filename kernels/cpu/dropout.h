// Dropout (Srivastava et al. 2014, inverted: kept elements are scaled up by 1/(1 - probability)) whose mask is a pure
// function of where an element stands in the model and in the data. It depends on no rank, no micro-batch and no
// address, is kept nowhere, and the backward pass or a recomputation draws it again.
//
// Element e of global sample s draws word e % 4 of philox4x32(counter, key), and is kept if that word, as an unsigned
// number, is not below probability · 2^32 (rounded):
//   key     = the first two words of philox4x32({step, layer, site}, {seed})
//   counter = {e / 4, s}                64-bit numbers fill two words each, the low one first
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace shardpipe::kernels {

// One array of the model in one step: no two of a run have the same key.
struct DropoutKey {
  uint64_t seed, step;
  uint32_t layer, site;  // site: which of a layer's dropouts
};

// y = kept ? x · 1/(1 - probability) : +0, computed in fp32 and stored as T, for x, y [batch, elements_per_sample]; the
// samples are first_sample, first_sample + 1, …; y may be the same memory as x. A probability of 0 gives the bits of x.
// Throws InvariantError unless 0 <= probability < 1, as all functions here do.
template <Element T>
void dropout_forward(const T* x, T* y, const DropoutKey&, uint64_t first_sample, int64_t batch,
                     int64_t elements_per_sample, float probability);
// dx = kept ? dy · 1/(1 - probability) : +0; dx may be the same memory as dy
template <Element T>
void dropout_backward_input(const T* dy, T* dx, const DropoutKey&, uint64_t first_sample, int64_t batch,
                            int64_t elements_per_sample, float probability);

// A part of one sample's attention probabilities [heads, sequence queries, sequence keys]. Each row of keys begins with
// a counter of its own: element e = (head · sequence + query) · (sequence rounded up to a multiple of 4) + key.
struct AttentionTile {
  uint64_t sample;
  int64_t sequence, head, first_query, queries, first_key, keys;
};
// multipliers [queries, keys] = kept ? 1/(1 - probability) : +0: what forward multiplies probabilities by and backward
// their gradients. Element (query, key) of the tile lies at [query · query_stride + key · key_stride], and one of the
// strides is 1; fastest where that is `keys` and first_key a multiple of 4. However an array is cut into tiles, an
// element's multiplier is the same.
void attention_dropout_tile(float* multipliers, int64_t query_stride, int64_t key_stride, const DropoutKey&,
                            const AttentionTile&, float probability);

}  // namespace shardpipe::kernels
