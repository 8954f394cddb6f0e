#include "model/blocks/blocks.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/activation.h"
#include "model/blocks/kinds.h"

namespace shardpipe {
namespace {

void check_views(const Model& model, const Block& block, const BlockViews& views) {
  check_invariant(views.shape.batch > 0 && views.shape.sequence > 0 && views.shape.sequence <= model.config.seq_len,
                  "{}: a micro-batch of {} sequences of {} tokens; the model reads 1 … {}", block.name,
                  views.shape.batch, views.shape.sequence, model.config.seq_len);
  for (const std::byte* region : {views.saved, views.recomputed, views.between, views.workspace}) {
    check_invariant(reinterpret_cast<uintptr_t>(region) % piece_alignment_bytes == 0,
                    "{}: saved, recomputed, between and workspace start on multiples of {} bytes", block.name,
                    piece_alignment_bytes);
  }
}

}  // namespace

kernels::AttentionShape attention_shape(const ModelConfig& config, MicroBatchShape shape) {
  const kernels::AttentionShape attention{.batch = shape.batch,
                                          .sequence = shape.sequence,
                                          .heads = config.heads,
                                          .kv_heads = config.kv_heads,
                                          .head_dim = config.hidden / config.heads};
  const uint64_t needed = kernels::attention_workspace_bytes(attention, shape.dtype, config.dropout > 0);
  const uint64_t booked = attention_workspace_bytes(config, shape);
  check_invariant(needed <= booked, "attention needs {} bytes of workspace, {} are booked", needed, booked);
  return attention;
}

kernels::DropoutKey dropout_key(const Block& block, const BlockViews& views, DropoutSite site) {
  return {.seed = views.dropout->seed,
          .step = views.dropout->step,
          .layer = static_cast<uint32_t>(block.layer + 1),  // 0 for the embedding
          .site = static_cast<uint32_t>(site)};
}

void give_gradient(const float* finished, float* gradient, int64_t count, bool accumulate) {
  if (accumulate) {
    kernels::add_to_sum(finished, gradient, count);
  } else {
    std::copy_n(finished, count, gradient);
  }
}

void block_forward(const Model& model, const Block& block, const BlockViews& views) {
  check_views(model, block, views);
  with_element(views.shape.dtype, [&]<Element T>() {
    switch (block.kind) {
      case BlockKind::Embedding:
        return EmbeddingArithmetic<T>::forward(model, block, views);
      case BlockKind::Layer:
        return model.config.family == Family::Gpt2 ? Gpt2LayerArithmetic<T>::forward(model, block, views)
                                                   : LlamaLayerArithmetic<T>::forward(model, block, views);
      case BlockKind::Head:
        return HeadArithmetic<T>::forward(model, block, views);
    }
  });
}

void block_recompute(const Model& model, const Block& block, const BlockViews& views) {
  check_views(model, block, views);
  if (views.recompute == Recompute::None) return;
  with_element(views.shape.dtype, [&]<Element T>() {
    switch (block.kind) {
      case BlockKind::Embedding:
        return;  // keeps nothing
      case BlockKind::Layer:
        return model.config.family == Family::Gpt2 ? Gpt2LayerArithmetic<T>::recompute(model, block, views)
                                                   : LlamaLayerArithmetic<T>::recompute(model, block, views);
      case BlockKind::Head:
        if (views.recompute == Recompute::Full) HeadArithmetic<T>::recompute(model, block, views);
        return;
    }
  });
}

void block_backward_input(const Model& model, const Block& block, const BlockViews& views) {
  check_views(model, block, views);
  with_element(views.shape.dtype, [&]<Element T>() {
    switch (block.kind) {
      case BlockKind::Embedding:
        return;  // tokens have no gradient
      case BlockKind::Layer:
        return model.config.family == Family::Gpt2 ? Gpt2LayerArithmetic<T>::backward_input(model, block, views)
                                                   : LlamaLayerArithmetic<T>::backward_input(model, block, views);
      case BlockKind::Head:
        return HeadArithmetic<T>::backward_input(model, block, views);
    }
  });
}

void block_backward_weight(const Model& model, const Block& block, const BlockViews& views) {
  check_views(model, block, views);
  with_element(views.shape.dtype, [&]<Element T>() {
    switch (block.kind) {
      case BlockKind::Embedding:
        return EmbeddingArithmetic<T>::backward_weight(model, block, views);
      case BlockKind::Layer:
        return model.config.family == Family::Gpt2 ? Gpt2LayerArithmetic<T>::backward_weight(model, block, views)
                                                   : LlamaLayerArithmetic<T>::backward_weight(model, block, views);
      case BlockKind::Head:
        return HeadArithmetic<T>::backward_weight(model, block, views);
    }
  });
}

}  // namespace shardpipe
