// output = table[token] (+ positions, GPT-2)
#include "kernels/cpu/embedding.h"

#include <algorithm>

#include "model/blocks/kinds.h"

namespace shardpipe {
namespace {

template <typename Float>
struct EmbeddingParameters {
  Float* positions;  // [seq_len, C]; null: Llama
  Float* table;      // [V, C]
};

// Positions come first; the table is the last tensor of the last group, which is "tied" or the block's own.
template <typename Float>
EmbeddingParameters<Float> parameters_in(const Model& model, const Block& block, std::array<Float*, 2> groups) {
  const size_t last = block.groups.size() - 1;
  return {.positions = model.config.family == Family::Gpt2 ? groups[0] : nullptr,
          .table = groups[last] + model.groups[block.groups[last]].tensors.back().offset};
}

}  // namespace

template <Element T>
void EmbeddingArithmetic<T>::forward(const Model& model, const Block& block, const BlockViews& views) {
  const TypedViews<T> typed(views);
  const auto parameters = parameters_in(model, block, typed.parameters);
  kernels::embedding_forward(views.tokens, parameters.table, parameters.positions, typed.output, views.shape.batch,
                             views.shape.sequence, model.config.hidden, model.config.vocab_size);
  if (drops(model, views)) drop(model, block, views, DropoutSite::Embedding, typed.output, typed.output);
}

template <Element T>
void EmbeddingArithmetic<T>::backward_weight(const Model& model, const Block& block, const BlockViews& views) {
  const TypedViews<T> typed(views);
  // The two groups may differ in whether they accumulate, and few rows are named: so start from zeros and always add.
  for (size_t i = 0; i < block.groups.size(); ++i) {
    if (!views.accumulate[i]) std::fill_n(views.gradients[i], model.groups[block.groups[i]].elements, 0.0f);
  }
  const auto gradients = parameters_in(model, block, views.gradients);
  const T* output_gradient = typed.output_gradient;
  if (drops(model, views)) {
    T* const dropped = carve(embedding_work<T>, views.workspace, model, views).d_dropped;
    drop(model, block, views, DropoutSite::Embedding, output_gradient, dropped);
    output_gradient = dropped;
  }
  kernels::embedding_backward_weight(views.tokens, output_gradient, gradients.table, gradients.positions,
                                     views.shape.batch, views.shape.sequence, model.config.seq_len, model.config.hidden,
                                     model.config.vocab_size, /*accumulate=*/true);
}

template struct EmbeddingArithmetic<float>;
template struct EmbeddingArithmetic<BFloat16>;
template struct EmbeddingArithmetic<Float16>;

}  // namespace shardpipe
