// The kinds of block behind blocks.h, one file a kind, and what they share.
#pragma once
#include "kernels/cpu/attention.h"
#include "model/blocks/blocks.h"
#include "model/shape/pieces.h"

namespace shardpipe {

void embedding_forward(const Model&, const Block&, const BlockViews&);
void embedding_backward_weight(const Model&, const Block&, const BlockViews&);

void gpt2_layer_forward(const Model&, const Block&, const BlockViews&);
void gpt2_layer_recompute(const Model&, const Block&, const BlockViews&);
void gpt2_layer_backward_input(const Model&, const Block&, const BlockViews&);
void gpt2_layer_backward_weight(const Model&, const Block&, const BlockViews&);

void llama_layer_forward(const Model&, const Block&, const BlockViews&);
void llama_layer_recompute(const Model&, const Block&, const BlockViews&);
void llama_layer_backward_input(const Model&, const Block&, const BlockViews&);
void llama_layer_backward_weight(const Model&, const Block&, const BlockViews&);

void head_forward(const Model&, const Block&, const BlockViews&);
void head_recompute(const Model&, const Block&, const BlockViews&);
void head_backward_input(const Model&, const Block&, const BlockViews&);
void head_backward_weight(const Model&, const Block&, const BlockViews&);

// The pieces (model/shape/pieces.h) of the region that starts at `region`.
template <typename Region>
auto carve(Region pieces, std::byte* region, const Model& model, const BlockViews& views) {
  Carver carver(region);
  return pieces(carver, model.config, views.shape);
}

// The same of what a forward left for the backward, kept or computed again.
template <typename Pieces>
auto carve_saved(Pieces pieces, const Model& model, const BlockViews& views) {
  SavedCarver regions{
      .recompute = views.recompute, .kept = Carver(views.saved), .recomputed = Carver(views.recomputed)};
  return pieces(regions, model.config, views.shape);
}

// InvariantError when the kernel needs more scratch than was booked.
kernels::AttentionShape attention_shape(const ModelConfig&, MicroBatchShape);

// gradient = (accumulate ? gradient : 0) + finished
void give_gradient(const float* finished, float* gradient, int64_t count, bool accumulate);

}  // namespace shardpipe
