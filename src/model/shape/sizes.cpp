#include <algorithm>

#include "base/error.h"
#include "model/shape/model.h"
#include "model/shape/pieces.h"

namespace shardpipe {
namespace {

bool is_gpt2(const ModelConfig& config) { return config.family == Family::Gpt2; }
int64_t head_dim(const ModelConfig& config) { return config.hidden / config.heads; }
int64_t qkv_width(const ModelConfig& config) { return (config.heads + 2 * config.kv_heads) * head_dim(config); }

// q·kᵀ and probabilities·v, each over half of sequence × sequence
double attention_flops(const ModelConfig& config, MicroBatchShape shape) {
  return 2 * (2 * static_cast<double>(shape.tokens() * shape.sequence) * static_cast<double>(config.hidden)) / 2;
}

template <typename Pieces>
SavedCarver saved_bytes(Pieces pieces, const ModelConfig& config, MicroBatchShape shape, Recompute recompute) {
  SavedCarver regions{.recompute = recompute, .kept = {}, .recomputed = {}};
  pieces(regions, config, shape);
  return regions;
}

template <typename Region>
uint64_t bytes_of(Region region, const ModelConfig& config, MicroBatchShape shape) {
  Carver carver;
  region(carver, config, shape);
  return carver.used_bytes();
}

}  // namespace

LayerSaved layer_saved(SavedCarver& regions, const ModelConfig& config, MicroBatchShape shape) {
  const int64_t tokens = shape.tokens();
  Carver &carver = regions.of(Recompute::Full), &attention = regions.of(Recompute::Selective);
  LayerSaved saved{};
  if (is_gpt2(config)) saved.mean_1 = carver.floats(tokens);
  saved.rstd_1 = carver.floats(tokens);
  saved.qkv = carver.floats(tokens * qkv_width(config));
  saved.attention = attention.floats(tokens * config.hidden);
  saved.log_sum_exp = attention.floats(tokens * config.heads);
  saved.residual = carver.floats(tokens * config.hidden);
  if (is_gpt2(config)) saved.mean_2 = carver.floats(tokens);
  saved.rstd_2 = carver.floats(tokens);
  saved.gate = carver.floats(tokens * config.ffn);
  if (!is_gpt2(config)) {
    saved.up = carver.floats(tokens * config.ffn);
    saved.cosines = carver.floats(shape.sequence * (head_dim(config) / 2));
    saved.sines = carver.floats(shape.sequence * (head_dim(config) / 2));
  }
  return saved;
}

LayerBetween layer_between(Carver& carver, const ModelConfig& config, MicroBatchShape shape) {
  const int64_t tokens = shape.tokens();
  LayerBetween between{};
  between.d_qkv = carver.floats(tokens * qkv_width(config));
  between.d_residual = carver.floats(tokens * config.hidden);
  between.d_gate = carver.floats(tokens * config.ffn);
  if (!is_gpt2(config)) between.d_up = carver.floats(tokens * config.ffn);
  between.d_gain_1 = carver.floats(config.hidden);
  between.d_gain_2 = carver.floats(config.hidden);
  if (is_gpt2(config)) {
    between.d_bias_1 = carver.floats(config.hidden);
    between.d_bias_2 = carver.floats(config.hidden);
  }
  between.gain_1 = carver.floats(config.hidden);
  between.gain_2 = carver.floats(config.hidden);
  if (is_gpt2(config)) {
    between.bias_1 = carver.floats(config.hidden);
    between.bias_2 = carver.floats(config.hidden);
  }
  return between;
}

LayerForwardWork layer_forward_work(Carver& carver, const ModelConfig& config, MicroBatchShape shape) {
  LayerForwardWork work{};
  work.normalised = carver.floats(shape.tokens() * config.hidden);
  work.activated = carver.floats(shape.tokens() * config.ffn);
  work.attention = carver.bytes(attention_workspace_bytes(config, shape));
  return work;
}

LayerBackwardInputWork layer_backward_input_work(Carver& carver, const ModelConfig& config, MicroBatchShape shape) {
  LayerBackwardInputWork work{};
  work.d_hidden = carver.floats(shape.tokens() * config.hidden);
  if (!is_gpt2(config)) work.d_activated = carver.floats(shape.tokens() * config.ffn);
  work.attention = carver.bytes(attention_workspace_bytes(config, shape));
  return work;
}

LayerBackwardWeightWork layer_backward_weight_work(Carver& carver, const ModelConfig& config, MicroBatchShape shape) {
  LayerBackwardWeightWork work{};
  work.normalised = carver.floats(shape.tokens() * config.hidden);
  if (is_gpt2(config)) work.mean = carver.floats(shape.tokens());
  work.rstd = carver.floats(shape.tokens());
  return work;
}

HeadSaved head_saved(SavedCarver& regions, const ModelConfig& config, MicroBatchShape shape) {
  Carver& carver = regions.of(Recompute::Full);
  HeadSaved saved{};
  if (is_gpt2(config)) saved.mean = carver.floats(shape.tokens());
  saved.rstd = carver.floats(shape.tokens());
  saved.logits = carver.floats(shape.tokens() * config.vocab_size);
  saved.log_sum_exp = carver.floats(shape.tokens());
  return saved;
}

HeadBetween head_between(Carver& carver, const ModelConfig& config, MicroBatchShape) {
  HeadBetween between{};
  between.d_gain = carver.floats(config.hidden);
  if (is_gpt2(config)) between.d_bias = carver.floats(config.hidden);
  between.gain = carver.floats(config.hidden);
  if (is_gpt2(config)) between.bias = carver.floats(config.hidden);
  return between;
}

HeadWork head_work(Carver& carver, const ModelConfig& config, MicroBatchShape shape) {
  HeadWork work{};
  work.normalised = carver.floats(shape.tokens() * config.hidden);
  if (is_gpt2(config)) work.mean = carver.floats(shape.tokens());
  work.rstd = carver.floats(shape.tokens());
  return work;
}

uint64_t attention_workspace_bytes(const ModelConfig& config, MicroBatchShape shape) {
  // As kernels/cpu/attention.h says: five tiles of heads, two of scores, a number a query row of one group of heads.
  constexpr int64_t tile = 64;
  const int64_t floats =
      5 * tile * head_dim(config) + 2 * tile * tile + config.heads / config.kv_heads * shape.sequence;
  return static_cast<uint64_t>(floats) * sizeof(float);
}

BlockBytes block_bytes(const Model& model, const Block& block, MicroBatchShape shape, Recompute recompute) {
  const ModelConfig& config = model.config;
  switch (block.kind) {
    case BlockKind::Embedding:
      return {};
    case BlockKind::Layer: {
      const SavedCarver saved = saved_bytes(layer_saved, config, shape, recompute);
      return {.saved = saved.kept.used_bytes(),
              .recomputed = saved.recomputed.used_bytes(),
              .between = bytes_of(layer_between, config, shape),
              .workspace = std::max({bytes_of(layer_forward_work, config, shape),
                                     bytes_of(layer_backward_input_work, config, shape),
                                     bytes_of(layer_backward_weight_work, config, shape)})};
    }
    case BlockKind::Head: {
      const SavedCarver saved = saved_bytes(head_saved, config, shape, recompute);
      return {.saved = saved.kept.used_bytes(),
              .recomputed = saved.recomputed.used_bytes(),
              .between = bytes_of(head_between, config, shape),
              .workspace = bytes_of(head_work, config, shape)};
    }
  }
  throw InvariantError(fmt::format("block '{}' is of no kind", block.name));
}

uint64_t activation_bytes(const Model& model, MicroBatchShape shape) {
  return static_cast<uint64_t>(shape.tokens() * model.config.hidden) * sizeof(float);
}

double forward_flops(const Model& model, const Block& block, MicroBatchShape shape) {
  const ModelConfig& config = model.config;
  const auto tokens = static_cast<double>(shape.tokens()), hidden = static_cast<double>(config.hidden);
  switch (block.kind) {
    case BlockKind::Embedding:
      return 0;  // a copy
    case BlockKind::Layer: {
      uint64_t weights = 0;
      for (const Tensor& tensor : model.groups[block.groups[0]].tensors) {
        if (tensor.shape.size() == 2) weights += tensor.elements;
      }
      return 2 * tokens * static_cast<double>(weights) + attention_flops(config, shape);
    }
    case BlockKind::Head:
      return 2 * tokens * hidden * static_cast<double>(config.vocab_size);
  }
  throw InvariantError(fmt::format("block '{}' is of no kind", block.name));
}

// Of a layer all but its last product, whose result the forward gave away.
double recompute_flops(const Model& model, const Block& block, MicroBatchShape shape, Recompute recompute) {
  const ModelConfig& config = model.config;
  if (recompute == Recompute::None || block.kind == BlockKind::Embedding) return 0;
  if (recompute == Recompute::Selective) return block.kind == BlockKind::Layer ? attention_flops(config, shape) : 0;
  const double last_product = 2.0 * static_cast<double>(shape.tokens() * config.ffn * config.hidden);
  return forward_flops(model, block, shape) - (block.kind == BlockKind::Layer ? last_product : 0);
}

}  // namespace shardpipe
