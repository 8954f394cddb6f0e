// The arithmetic of a block over views that it is given. A block owns no memory, sees no rank, starts no transfer; the
// same calls on the same bits give the same bits. Thread-safe: everything it touches is in BlockViews.
//
// Backward is backward_input followed by backward_weight, bit for bit: that is how a fused backward is made.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "model/shape/model.h"

namespace shardpipe {

// Where the loss of one micro-batch goes: sums over its counted targets.
struct LossSlot {
  double loss = 0;
  double tokens = 0;  // a double, so that a vector of slots can be summed by one collective
};

// What decides the masks of dropout in a step, besides the model: the same on every rank. Changed between steps.
struct DropoutDraw {
  uint64_t seed = 0, step = 0;
  uint64_t first_sample = 0;  // of the step's global batch
};

// What a function reads and writes; only what its kind of block uses is set. Activations are [tokens, hidden]. What is
// void is of the type that shape.dtype names; gradients of parameters are fp32 whatever it is.
struct BlockViews {
  MicroBatchShape shape;
  const int32_t* tokens = nullptr;          // [batch, sequence]: embedding
  const int32_t* targets = nullptr;         // [batch, sequence], kernels::ignored_target where there is none: head
  std::array<const void*, 2> parameters{};  // one flat array a parameter group, in the order of Block::groups
  std::array<float*, 2> gradients{};        // the same; written or added to by backward_weight
  std::array<bool, 2> accumulate{};         // add to gradients[i] instead of overwriting all of it
  const void* input = nullptr;              // layer, head
  void* output = nullptr;                   // embedding, layer
  const void* output_gradient = nullptr;    // embedding, layer
  void* input_gradient = nullptr;           // layer, head
  std::byte* saved = nullptr;
  std::byte* recomputed = nullptr;        // what of it is computed again; scratch in a forward
  Recompute recompute = Recompute::None;  // decides what lies in which of the two
  std::byte* between = nullptr;
  std::byte* workspace = nullptr;
  LossSlot* loss = nullptr;              // head: overwritten by forward
  const DropoutDraw* dropout = nullptr;  // null: nothing is dropped, whatever the model says
  uint64_t first_row = 0;                // of the micro-batch in the global batch: which samples these are
  const float* loss_scale = nullptr;     // head: what backward_input multiplies its gradient by; null: 1
};

// saved is overwritten; the head overwrites *loss by the sums of this micro-batch. The head's gradients are those of
// the loss SUM, times *loss_scale: dividing by the number of tokens is the optimizer's business, since only it knows
// the global batch. (The scale keeps fp16's small gradients from vanishing: Micikevicius et al., "Mixed precision
// training", arXiv:1710.03740, section 3.2. It is in every gradient of the step.)
void block_forward(const Model&, const Block&, const BlockViews&);
// Fills `recomputed` with what the forward had there, bit for bit, from its input and parameters (Full) or from `saved`
// alone (Selective); writes neither output nor loss. With None it does nothing.
void block_recompute(const Model&, const Block&, const BlockViews&);
void block_backward_input(const Model&, const Block&, const BlockViews&);  // embedding: does nothing
// Reads tokens, input, output_gradient, saved and between, but no parameters.
void block_backward_weight(const Model&, const Block&, const BlockViews&);

// Fills a parameter group with its starting values: counter-based (Philox 4x32-10, Salmon et al. 2011), keyed by (seed,
// tensor name, element), so a layout or a cut cannot change them. first/count: which elements of the group; padding
// past its end becomes 0.
void initialise(const ParameterGroup&, uint64_t seed, uint64_t first, uint64_t count, float* out);

}  // namespace shardpipe
