// Causal attention, tiled with a running softmax so that the sequence × sequence matrix never exists (Dao et al.,
// FlashAttention, arXiv:2205.14135). Grouped queries (Ainslie et al., arXiv:2305.13245): key head j serves query heads
// j·g … j·g+g-1, g = heads / kv_heads.
//
// Computed in fp32: tiles of what is stored as T (tensor/dtype.h) are converted as they are read, and each result is
// rounded to T once, when its sum is complete.
#pragma once
#include <cstdint>

#include "kernels/cpu/dropout.h"
#include "tensor/dtype.h"

namespace shardpipe::kernels {

struct AttentionShape {
  int64_t batch, sequence, heads, kv_heads, head_dim;
};

// A view of [batch, sequence, heads, head_dim]: consecutive tokens lie `stride` elements apart, heads are packed. So q,
// k and v may lie in one [tokens, (heads + 2·kv_heads)·head_dim] matrix.
template <Element T>
struct HeadsIn {
  const T* data;
  int64_t stride;
};
template <Element T>
struct HeadsOut {
  T* data;
  int64_t stride;
};

// Dropout of the probabilities (dropout.h): of the first sequence's sample and those that follow it.
struct AttentionDropout {
  DropoutKey key;
  uint64_t first_sample;
  float probability;
};

// Bytes of scratch that one call of forward or backward needs: a few tiles and a float for each query of a group,
// independent of the batch; where T is of 16 bits, also the group's queries' gradients [group, sequence, head_dim], in
// fp32, which are added to by every tile of keys. With dropout one tile of scores more.
uint64_t attention_workspace_bytes(const AttentionShape&, DType, bool with_dropout = false);

// out = dropout(softmax(q·kᵀ / √head_dim, causal)) · v, without dropout where that is null; log_sum_exp [batch, heads,
// sequence] is kept for backward
template <Element T>
void attention_forward(const AttentionShape&, HeadsIn<T> q, HeadsIn<T> k, HeadsIn<T> v, HeadsOut<T> out,
                       float* log_sum_exp, void* workspace, const AttentionDropout* = nullptr);
// Recomputes the probabilities tile by tile from q, k and log_sum_exp. dq, dk, dv are overwritten.
template <Element T>
void attention_backward_input(const AttentionShape&, HeadsIn<T> dout, HeadsIn<T> q, HeadsIn<T> k, HeadsIn<T> v,
                              HeadsIn<T> out, const float* log_sum_exp, HeadsOut<T> dq, HeadsOut<T> dk, HeadsOut<T> dv,
                              void* workspace, const AttentionDropout* = nullptr);

}  // namespace shardpipe::kernels
