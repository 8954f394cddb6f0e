// What lies where in a block's saved, between and workspace bytes. One function a region names its pieces in order; it
// counts them (sizes.cpp) and hands them out (model/blocks), so that what is planned and what is touched cannot drift
// apart.
#pragma once
#include <cstddef>
#include <cstdint>

#include "model/shape/model.h"

namespace shardpipe {

inline constexpr uint64_t piece_alignment_bytes = 64;  // a cache line, and the widest vector

// Walks a region from its start; every piece starts on a multiple of piece_alignment_bytes. Without a region it only
// counts.
class Carver {
 public:
  Carver() = default;
  explicit Carver(std::byte* region) : region_(region) {}

  std::byte* bytes(uint64_t count) {
    std::byte* piece = region_ == nullptr ? nullptr : region_ + used_bytes_;
    used_bytes_ += (count + piece_alignment_bytes - 1) / piece_alignment_bytes * piece_alignment_bytes;
    return piece;
  }
  template <Element T>
  T* elements(int64_t count) {
    return reinterpret_cast<T*>(bytes(static_cast<uint64_t>(count) * sizeof(T)));
  }
  float* floats(int64_t count) { return elements<float>(count); }
  uint64_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* region_ = nullptr;
  uint64_t used_bytes_ = 0;
};

// What a forward leaves for the backward lies in two regions: what is kept, and what is computed again. Where nothing
// is, all of it is kept, in the order of the pieces.
struct SavedCarver {
  Recompute recompute = Recompute::None;
  Carver kept{}, recomputed{};

  // Where a piece lies that is computed again from this on.
  Carver& of(Recompute from) { return recompute >= from ? recomputed : kept; }
};

// N tokens, C hidden, F ffn, V vocabulary, H heads, D head width, S sequence. T, MicroBatchShape::dtype, is what
// activations and parameters are stored as; statistics, finished gradients of parameters and rotary tables are fp32. A
// family that has no such piece leaves it null.
//
// What is cheap next to a matrix product is computed again instead of kept: the outputs of norms by backward_weight; of
// GELU and SwiGLU by backward_input, whose gradient needs most of it anyway. 6 of GPT-2's 15 C a token, for less than a
// hundredth of a layer's arithmetic.

template <Element T>
struct LayerSaved {
  float *mean_1, *rstd_1;  // [N] of the first norm; Llama's has no mean
  T* qkv;                  // [N, (H + 2·kv_heads)·D]: Llama's q and k already rotated
  T* attention;            // [N, C]: heads side by side, before the output projection
  float* log_sum_exp;      // [batch, H, S]
  T* residual;             // [N, C]: input + attention's projection
  float *mean_2, *rstd_2;  // [N] of the second norm
  T* gate;  // [N, F]: GPT-2's values before GELU, Llama's gate; backward_input overwrites them by GELU's or SwiGLU's
  T* up;    // [N, F]: Llama
  float *cosines, *sines;  // [S, D/2]: Llama
};
template <Element T>
LayerSaved<T> layer_saved(SavedCarver&, const ModelConfig&, MicroBatchShape);

// The output gradient of each linear that backward_weight needs (the last one's is the block's own output_gradient),
// the norms' parameter gradients, which are so small that backward_input finishes them, and a copy of the norms'
// parameters: so backward_weight reads no parameters, and where they are sharded it needs no gather.
template <Element T>
struct LayerBetween {
  T* d_qkv;                    // [N, (H + 2·kv_heads)·D]
  T* d_residual;               // [N, C]
  T *d_gate, *d_up;            // [N, F]; d_up: Llama
  float *d_gain_1, *d_bias_1;  // [C]; biases: GPT-2
  float *d_gain_2, *d_bias_2;  // [C]
  T *gain_1, *bias_1;          // [C]
  T *gain_2, *bias_2;          // [C]
};
template <Element T>
LayerBetween<T> layer_between(Carver&, const ModelConfig&, MicroBatchShape);

template <Element T>
struct LayerForwardWork {
  T* normalised;         // [N, C]
  T* activated;          // [N, F]
  std::byte* attention;  // attention_workspace_bytes
};
template <Element T>
LayerForwardWork<T> layer_forward_work(Carver&, const ModelConfig&, MicroBatchShape);

template <Element T>
struct LayerBackwardInputWork {
  T* d_hidden;           // [N, C]
  T* d_activated;        // [N, F]: Llama
  T* d_dropped;          // [N, C]: of a residual branch, before dropout; with dropout
  std::byte* attention;  // attention_workspace_bytes
};
template <Element T>
LayerBackwardInputWork<T> layer_backward_input_work(Carver&, const ModelConfig&, MicroBatchShape);

template <Element T>
struct LayerBackwardWeightWork {
  T* normalised;       // [N, C]
  float *mean, *rstd;  // [N]: of the norm computed again
  T* d_dropped;        // [N, C]: as in LayerBackwardInputWork
};
template <Element T>
LayerBackwardWeightWork<T> layer_backward_weight_work(Carver&, const ModelConfig&, MicroBatchShape);

template <Element T>
struct EmbeddingWork {
  T* d_dropped;  // [N, C]: of the output, before dropout; with dropout
};
template <Element T>
EmbeddingWork<T> embedding_work(Carver&, const ModelConfig&, MicroBatchShape);

template <Element T>
struct HeadSaved {
  float *mean, *rstd;  // [N]
  T* logits;           // [N, V]: backward_input overwrites them by their gradient
  float* log_sum_exp;  // [N]
};
template <Element T>
HeadSaved<T> head_saved(SavedCarver&, const ModelConfig&, MicroBatchShape);

template <Element T>
struct HeadBetween {
  float *d_gain, *d_bias;  // [C]; bias: GPT-2
  T *gain, *bias;          // [C]: copies, as a layer's
};
template <Element T>
HeadBetween<T> head_between(Carver&, const ModelConfig&, MicroBatchShape);

// The same pieces for each of the head's functions.
template <Element T>
struct HeadWork {
  T* normalised;       // [N, C]: backward_input keeps its gradient here
  float *mean, *rstd;  // [N]: of the norm computed again
};
template <Element T>
HeadWork<T> head_work(Carver&, const ModelConfig&, MicroBatchShape);

// What is booked for the attention kernel's tiles. The kernel says at run time what it needs, and a block refuses to
// run when that is more.
uint64_t attention_workspace_bytes(const ModelConfig&, MicroBatchShape);

}  // namespace shardpipe
