// The kinds of block behind blocks.h, one file a kind, and what they share.
#pragma once
#include "kernels/cpu/attention.h"
#include "kernels/cpu/dropout.h"
#include "model/blocks/blocks.h"
#include "model/shape/pieces.h"

namespace shardpipe {

// Instances for each Element are in the files that define the members.
template <Element T>
struct EmbeddingArithmetic {
  static void forward(const Model&, const Block&, const BlockViews&);
  static void backward_weight(const Model&, const Block&, const BlockViews&);
};
template <Element T>
struct Gpt2LayerArithmetic {
  static void forward(const Model&, const Block&, const BlockViews&);
  static void recompute(const Model&, const Block&, const BlockViews&);
  static void backward_input(const Model&, const Block&, const BlockViews&);
  static void backward_weight(const Model&, const Block&, const BlockViews&);
};
template <Element T>
struct LlamaLayerArithmetic {
  static void forward(const Model&, const Block&, const BlockViews&);
  static void recompute(const Model&, const Block&, const BlockViews&);
  static void backward_input(const Model&, const Block&, const BlockViews&);
  static void backward_weight(const Model&, const Block&, const BlockViews&);
};
template <Element T>
struct HeadArithmetic {
  static void forward(const Model&, const Block&, const BlockViews&);
  static void recompute(const Model&, const Block&, const BlockViews&);
  static void backward_input(const Model&, const Block&, const BlockViews&);
  static void backward_weight(const Model&, const Block&, const BlockViews&);
};

// What is void in BlockViews, as what it is.
template <Element T>
struct TypedViews {
  explicit TypedViews(const BlockViews& views)
      : parameters{static_cast<const T*>(views.parameters[0]), static_cast<const T*>(views.parameters[1])},
        input(static_cast<const T*>(views.input)),
        output(static_cast<T*>(views.output)),
        output_gradient(static_cast<const T*>(views.output_gradient)),
        input_gradient(static_cast<T*>(views.input_gradient)) {}

  std::array<const T*, 2> parameters;
  const T* input;
  T* output;
  const T* output_gradient;
  T* input_gradient;
};

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

// Which dropout of a layer, or of the embedding: part of the key of its mask.
enum class DropoutSite : uint32_t { Embedding, Probabilities, AttentionBranch, FeedForwardBranch };
kernels::DropoutKey dropout_key(const Block&, const BlockViews&, DropoutSite);

inline bool drops(const Model& model, const BlockViews& views) {
  return views.dropout != nullptr && model.config.dropout > 0;
}

// y = dropout(x), [tokens, hidden]; y may be x. Its own gradient: the same mask of the output's gradient.
template <Element T>
void drop(const Model& model, const Block& block, const BlockViews& views, DropoutSite site, const T* x, T* y) {
  kernels::dropout_forward(x, y, dropout_key(block, views, site), views.dropout->first_sample + views.first_row,
                           views.shape.batch, views.shape.sequence * model.config.hidden,
                           static_cast<float>(model.config.dropout));
}

// InvariantError when the kernel needs more scratch than was booked.
kernels::AttentionShape attention_shape(const ModelConfig&, MicroBatchShape);

// gradient = (accumulate ? gradient : 0) + finished
void give_gradient(const float* finished, float* gradient, int64_t count, bool accumulate);

}  // namespace shardpipe
