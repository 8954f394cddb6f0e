#include <algorithm>

#include "base/error.h"
#include "model/shape/model.h"
#include "model/shape/pieces.h"
#include "model/shape/work.h"

namespace shardpipe {
namespace {

bool is_gpt2(const ModelConfig& config) { return config.family == Family::Gpt2; }
int64_t head_dim(const ModelConfig& config) { return config.hidden / config.heads; }
int64_t qkv_width(const ModelConfig& config) { return (config.heads + 2 * config.kv_heads) * head_dim(config); }

// Of what is kept, and of what is computed again.
template <typename Pieces>
BlockBytes saved_bytes(Pieces pieces, const ModelConfig& config, MicroBatchShape shape, Recompute recompute) {
  SavedCarver regions{.recompute = recompute};
  pieces(regions, config, shape);
  return {.saved = regions.kept.used_bytes(), .recomputed = regions.recomputed.used_bytes()};
}

template <typename Region>
uint64_t region_bytes(Region region, const ModelConfig& config, MicroBatchShape shape) {
  Carver carver;
  region(carver, config, shape);
  return carver.used_bytes();
}

}  // namespace

template <Element T>
LayerSaved<T> layer_saved(SavedCarver& regions, const ModelConfig& config, MicroBatchShape shape) {
  const int64_t tokens = shape.tokens();
  Carver &carver = regions.of(Recompute::Full), &attention = regions.of(Recompute::Selective);
  LayerSaved<T> saved{};
  if (is_gpt2(config)) saved.mean_1 = carver.floats(tokens);
  saved.rstd_1 = carver.floats(tokens);
  saved.qkv = carver.elements<T>(tokens * qkv_width(config));
  saved.attention = attention.elements<T>(tokens * config.hidden);
  saved.log_sum_exp = attention.floats(tokens * config.heads);
  saved.residual = carver.elements<T>(tokens * config.hidden);
  if (is_gpt2(config)) saved.mean_2 = carver.floats(tokens);
  saved.rstd_2 = carver.floats(tokens);
  saved.gate = carver.elements<T>(tokens * config.ffn);
  if (!is_gpt2(config)) {
    saved.up = carver.elements<T>(tokens * config.ffn);
    saved.cosines = carver.floats(shape.sequence * (head_dim(config) / 2));
    saved.sines = carver.floats(shape.sequence * (head_dim(config) / 2));
  }
  return saved;
}

template <Element T>
LayerBetween<T> layer_between(Carver& carver, const ModelConfig& config, MicroBatchShape shape) {
  const int64_t tokens = shape.tokens();
  LayerBetween<T> between{};
  between.d_qkv = carver.elements<T>(tokens * qkv_width(config));
  between.d_residual = carver.elements<T>(tokens * config.hidden);
  between.d_gate = carver.elements<T>(tokens * config.ffn);
  if (!is_gpt2(config)) between.d_up = carver.elements<T>(tokens * config.ffn);
  between.d_gain_1 = carver.floats(config.hidden);
  between.d_gain_2 = carver.floats(config.hidden);
  if (is_gpt2(config)) {
    between.d_bias_1 = carver.floats(config.hidden);
    between.d_bias_2 = carver.floats(config.hidden);
  }
  between.gain_1 = carver.elements<T>(config.hidden);
  between.gain_2 = carver.elements<T>(config.hidden);
  if (is_gpt2(config)) {
    between.bias_1 = carver.elements<T>(config.hidden);
    between.bias_2 = carver.elements<T>(config.hidden);
  }
  return between;
}

template <Element T>
LayerForwardWork<T> layer_forward_work(Carver& carver, const ModelConfig& config, MicroBatchShape shape) {
  LayerForwardWork<T> work{};
  work.normalised = carver.elements<T>(shape.tokens() * config.hidden);
  work.activated = carver.elements<T>(shape.tokens() * config.ffn);
  work.attention = carver.bytes(attention_workspace_bytes(config, shape));
  return work;
}

template <Element T>
LayerBackwardInputWork<T> layer_backward_input_work(Carver& carver, const ModelConfig& config, MicroBatchShape shape) {
  LayerBackwardInputWork<T> work{};
  work.d_hidden = carver.elements<T>(shape.tokens() * config.hidden);
  if (!is_gpt2(config)) work.d_activated = carver.elements<T>(shape.tokens() * config.ffn);
  if (config.dropout > 0) work.d_dropped = carver.elements<T>(shape.tokens() * config.hidden);
  work.attention = carver.bytes(attention_workspace_bytes(config, shape));
  return work;
}

template <Element T>
LayerBackwardWeightWork<T> layer_backward_weight_work(Carver& carver, const ModelConfig& config,
                                                      MicroBatchShape shape) {
  LayerBackwardWeightWork<T> work{};
  work.normalised = carver.elements<T>(shape.tokens() * config.hidden);
  if (is_gpt2(config)) work.mean = carver.floats(shape.tokens());
  work.rstd = carver.floats(shape.tokens());
  if (config.dropout > 0) work.d_dropped = carver.elements<T>(shape.tokens() * config.hidden);
  return work;
}

template <Element T>
EmbeddingWork<T> embedding_work(Carver& carver, const ModelConfig& config, MicroBatchShape shape) {
  EmbeddingWork<T> work{};
  if (config.dropout > 0) work.d_dropped = carver.elements<T>(shape.tokens() * config.hidden);
  return work;
}

template <Element T>
HeadSaved<T> head_saved(SavedCarver& regions, const ModelConfig& config, MicroBatchShape shape) {
  Carver& carver = regions.of(Recompute::Full);
  HeadSaved<T> saved{};
  if (is_gpt2(config)) saved.mean = carver.floats(shape.tokens());
  saved.rstd = carver.floats(shape.tokens());
  saved.logits = carver.elements<T>(shape.tokens() * config.vocab_size);
  saved.log_sum_exp = carver.floats(shape.tokens());
  return saved;
}

template <Element T>
HeadBetween<T> head_between(Carver& carver, const ModelConfig& config, MicroBatchShape) {
  HeadBetween<T> between{};
  between.d_gain = carver.floats(config.hidden);
  if (is_gpt2(config)) between.d_bias = carver.floats(config.hidden);
  between.gain = carver.elements<T>(config.hidden);
  if (is_gpt2(config)) between.bias = carver.elements<T>(config.hidden);
  return between;
}

template <Element T>
HeadWork<T> head_work(Carver& carver, const ModelConfig& config, MicroBatchShape shape) {
  HeadWork<T> work{};
  work.normalised = carver.elements<T>(shape.tokens() * config.hidden);
  if (is_gpt2(config)) work.mean = carver.floats(shape.tokens());
  work.rstd = carver.floats(shape.tokens());
  return work;
}

#define SHARDPIPE_INSTANCES(T)                                                                                  \
  template LayerSaved<T> layer_saved(SavedCarver&, const ModelConfig&, MicroBatchShape);                        \
  template LayerBetween<T> layer_between(Carver&, const ModelConfig&, MicroBatchShape);                         \
  template LayerForwardWork<T> layer_forward_work(Carver&, const ModelConfig&, MicroBatchShape);                \
  template LayerBackwardInputWork<T> layer_backward_input_work(Carver&, const ModelConfig&, MicroBatchShape);   \
  template LayerBackwardWeightWork<T> layer_backward_weight_work(Carver&, const ModelConfig&, MicroBatchShape); \
  template EmbeddingWork<T> embedding_work(Carver&, const ModelConfig&, MicroBatchShape);                       \
  template HeadSaved<T> head_saved(SavedCarver&, const ModelConfig&, MicroBatchShape);                          \
  template HeadBetween<T> head_between(Carver&, const ModelConfig&, MicroBatchShape);                           \
  template HeadWork<T> head_work(Carver&, const ModelConfig&, MicroBatchShape)
SHARDPIPE_INSTANCES(float);
SHARDPIPE_INSTANCES(BFloat16);
SHARDPIPE_INSTANCES(Float16);

uint64_t attention_workspace_bytes(const ModelConfig& config, MicroBatchShape shape) {
  // As kernels/cpu/attention.h says: five tiles of heads, two of scores, a number a query row of one group of heads;
  // and where activations are of 16 bits, fp32 sums of two tiles and of that group's rows.
  constexpr int64_t tile = 64;
  const int64_t group = config.heads / config.kv_heads;
  int64_t floats = 5 * tile * head_dim(config) + 2 * tile * tile + group * shape.sequence;
  if (shape.dtype != DType::Float32) floats += (2 * tile + group * shape.sequence) * head_dim(config);
  if (config.dropout > 0) floats += tile * tile;
  return static_cast<uint64_t>(floats) * sizeof(float);
}

BlockBytes block_bytes(const Model& model, const Block& block, MicroBatchShape shape, Recompute recompute) {
  const ModelConfig& config = model.config;
  return with_element(shape.dtype, [&]<Element T>() -> BlockBytes {
    BlockBytes bytes;
    switch (block.kind) {
      case BlockKind::Embedding:
        bytes.workspace = region_bytes(embedding_work<T>, config, shape);
        return bytes;
      case BlockKind::Layer:
        bytes = saved_bytes(layer_saved<T>, config, shape, recompute);
        bytes.between = region_bytes(layer_between<T>, config, shape);
        bytes.workspace = std::max({region_bytes(layer_forward_work<T>, config, shape),
                                    region_bytes(layer_backward_input_work<T>, config, shape),
                                    region_bytes(layer_backward_weight_work<T>, config, shape)});
        return bytes;
      case BlockKind::Head:
        bytes = saved_bytes(head_saved<T>, config, shape, recompute);
        bytes.between = region_bytes(head_between<T>, config, shape);
        bytes.workspace = region_bytes(head_work<T>, config, shape);
        return bytes;
    }
    throw InvariantError(fmt::format("block '{}' is of no kind", block.name));
  });
}

uint64_t activation_bytes(const Model& model, MicroBatchShape shape) {
  return static_cast<uint64_t>(shape.tokens() * model.config.hidden) * bytes_of(shape.dtype);
}

double forward_flops(const Model& model, const Block& block, MicroBatchShape shape) {
  return forward_work(model, block, shape).flops();
}

double recompute_flops(const Model& model, const Block& block, MicroBatchShape shape, Recompute recompute) {
  return recompute_work(model, block, shape, recompute).flops();
}

}  // namespace shardpipe
