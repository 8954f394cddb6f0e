// Causal attention, tiled with a running softmax so that the sequence × sequence matrix never exists (Dao et al.,
// FlashAttention, arXiv:2205.14135). Grouped queries (Ainslie et al., arXiv:2305.13245): key head j serves query heads
// j·g … j·g+g-1, g = heads / kv_heads.
#pragma once
#include <cstdint>

namespace shardpipe::kernels {

struct AttentionShape {
  int64_t batch, sequence, heads, kv_heads, head_dim;
};

// A view of [batch, sequence, heads, head_dim]: consecutive tokens lie `stride` elements apart, heads are packed. So q,
// k and v may lie in one [tokens, (heads + 2·kv_heads)·head_dim] matrix.
struct HeadsIn {
  const float* data;
  int64_t stride;
};
struct HeadsOut {
  float* data;
  int64_t stride;
};

// Bytes of scratch that one call of forward or backward needs: a few tiles and a float for each query of a group,
// independent of the batch.
uint64_t attention_workspace_bytes(const AttentionShape&);

// out = softmax(q·kᵀ / √head_dim, causal) · v; log_sum_exp [batch, heads, sequence] is kept for backward
void attention_forward(const AttentionShape&, HeadsIn q, HeadsIn k, HeadsIn v, HeadsOut out, float* log_sum_exp,
                       void* workspace);
// Recomputes the probabilities tile by tile from q, k and log_sum_exp. dq, dk, dv are overwritten.
void attention_backward_input(const AttentionShape&, HeadsIn dout, HeadsIn q, HeadsIn k, HeadsIn v, HeadsIn out,
                              const float* log_sum_exp, HeadsOut dq, HeadsOut dk, HeadsOut dv, void* workspace);

}  // namespace shardpipe::kernels
