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
  float* floats(int64_t count) { return reinterpret_cast<float*>(bytes(static_cast<uint64_t>(count) * sizeof(float))); }
  uint64_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* region_ = nullptr;
  uint64_t used_bytes_ = 0;
};

// What a forward leaves for the backward lies in two regions: what is kept, and what is computed again. Where nothing
// is, all of it is kept, in the order of the pieces.
struct SavedCarver {
  Recompute recompute = Recompute::None;
  Carver kept, recomputed;

  // Where a piece lies that is computed again from this on.
  Carver& of(Recompute from) { return recompute >= from ? recomputed : kept; }
};

// T tokens, C hidden, F ffn, V vocabulary, H heads, D head width, S sequence; fp32. A family that has no such piece
// leaves it null.
//
// What is cheap next to a matrix product is computed again instead of kept: the outputs of norms by backward_weight; of
// GELU and SwiGLU by backward_input, whose gradient needs most of it anyway. 6 of GPT-2's 15 C a token, for less than a
// hundredth of a layer's arithmetic.

struct LayerSaved {
  float *mean_1, *rstd_1;  // [T] of the first norm; Llama's has no mean
  float* qkv;              // [T, (H + 2·kv_heads)·D]: Llama's q and k already rotated
  float* attention;        // [T, C]: heads side by side, before the output projection
  float* log_sum_exp;      // [batch, H, S]
  float* residual;         // [T, C]: input + attention's projection
  float *mean_2, *rstd_2;  // [T] of the second norm
  float*
      gate;   // [T, F]: GPT-2's values before GELU, Llama's gate; backward_input overwrites them by GELU's or SwiGLU's
  float* up;  // [T, F]: Llama
  float *cosines, *sines;  // [S, D/2]: Llama
};
LayerSaved layer_saved(SavedCarver&, const ModelConfig&, MicroBatchShape);

// The output gradient of each linear that backward_weight needs (the last one's is the block's own output_gradient),
// the norms' parameter gradients, which are so small that backward_input finishes them, and a copy of the norms'
// parameters: so backward_weight reads no parameters, and where they are sharded it needs no gather.
struct LayerBetween {
  float* d_qkv;                // [T, (H + 2·kv_heads)·D]
  float* d_residual;           // [T, C]
  float *d_gate, *d_up;        // [T, F]; d_up: Llama
  float *d_gain_1, *d_bias_1;  // [C]; biases: GPT-2
  float *d_gain_2, *d_bias_2;  // [C]
  float *gain_1, *bias_1;      // [C]
  float *gain_2, *bias_2;      // [C]
};
LayerBetween layer_between(Carver&, const ModelConfig&, MicroBatchShape);

struct LayerForwardWork {
  float* normalised;     // [T, C]
  float* activated;      // [T, F]
  std::byte* attention;  // attention_workspace_bytes
};
LayerForwardWork layer_forward_work(Carver&, const ModelConfig&, MicroBatchShape);

struct LayerBackwardInputWork {
  float* d_hidden;       // [T, C]
  float* d_activated;    // [T, F]: Llama
  std::byte* attention;  // attention_workspace_bytes
};
LayerBackwardInputWork layer_backward_input_work(Carver&, const ModelConfig&, MicroBatchShape);

struct LayerBackwardWeightWork {
  float* normalised;   // [T, C]
  float *mean, *rstd;  // [T]: of the norm computed again
};
LayerBackwardWeightWork layer_backward_weight_work(Carver&, const ModelConfig&, MicroBatchShape);

struct HeadSaved {
  float *mean, *rstd;  // [T]
  float* logits;       // [T, V]: backward_input overwrites them by their gradient
  float* log_sum_exp;  // [T]
};
HeadSaved head_saved(SavedCarver&, const ModelConfig&, MicroBatchShape);

struct HeadBetween {
  float *d_gain, *d_bias;  // [C]; bias: GPT-2
  float *gain, *bias;      // [C]: copies, as a layer's
};
HeadBetween head_between(Carver&, const ModelConfig&, MicroBatchShape);

// The same pieces for each of the head's functions.
struct HeadWork {
  float* normalised;   // [T, C]: backward_input keeps its gradient here
  float *mean, *rstd;  // [T]: of the norm computed again
};
HeadWork head_work(Carver&, const ModelConfig&, MicroBatchShape);

// What is booked for the attention kernel's tiles. The kernel says at run time what it needs, and a block refuses to
// run when that is more.
uint64_t attention_workspace_bytes(const ModelConfig&, MicroBatchShape);

}  // namespace shardpipe
