#include "model/shape/model.h"

#include <cmath>
#include <utility>

#include "base/error.h"

namespace shardpipe {
namespace {

constexpr float initial_deviation = 0.02f;

void append(ParameterGroup& group, std::string name, std::vector<int64_t> shape, bool decays, Initial initial) {
  uint64_t elements = 1;
  for (const int64_t extent : shape) elements *= static_cast<uint64_t>(extent);
  group.tensors.push_back({.name = std::move(name),
                           .shape = std::move(shape),
                           .offset = group.elements,
                           .elements = elements,
                           .decays = decays,
                           .initial = initial});
  group.elements += elements;
}

// weight [out, in]
void append_matrix(ParameterGroup& group, std::string name, int64_t out, int64_t in, float deviation) {
  append(group, std::move(name), {out, in}, true, {Initial::Kind::Normal, deviation});
}
void append_gain(ParameterGroup& group, std::string name, int64_t width) {
  append(group, std::move(name), {width}, false, {Initial::Kind::Ones, 0});
}
void append_bias(ParameterGroup& group, std::string name, int64_t width) {
  append(group, std::move(name), {width}, false, {Initial::Kind::Zeros, 0});
}

// Projections that add to the residual stream start smaller, so that its variance does not grow with depth.
float residual_deviation(const ModelConfig& config) {
  return static_cast<float>(initial_deviation / std::sqrt(2.0 * static_cast<double>(config.layers)));
}

ParameterGroup gpt2_layer(const ModelConfig& config, int64_t layer) {
  const std::string prefix = fmt::format("h.{}.", layer);
  const auto append_linear = [&](ParameterGroup& group, const char* name, int64_t out, int64_t in, float deviation) {
    append_matrix(group, prefix + name + ".weight", out, in, deviation);
    append_bias(group, prefix + name + ".bias", out);
  };
  const auto append_norm = [&](ParameterGroup& group, const char* name) {
    append_gain(group, prefix + name + ".weight", config.hidden);
    append_bias(group, prefix + name + ".bias", config.hidden);
  };
  ParameterGroup group{.name = fmt::format("layer {}", layer), .tensors = {}};
  append_norm(group, "ln_1");
  append_linear(group, "attn.c_attn", 3 * config.hidden, config.hidden, initial_deviation);
  append_linear(group, "attn.c_proj", config.hidden, config.hidden, residual_deviation(config));
  append_norm(group, "ln_2");
  append_linear(group, "mlp.c_fc", config.ffn, config.hidden, initial_deviation);
  append_linear(group, "mlp.c_proj", config.hidden, config.ffn, residual_deviation(config));
  return group;
}

// q, k and v lie one behind the other, so that one matrix product makes all three.
ParameterGroup llama_layer(const ModelConfig& config, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const int64_t kv_width = config.hidden / config.heads * config.kv_heads;
  ParameterGroup group{.name = fmt::format("layer {}", layer), .tensors = {}};
  append_gain(group, prefix + "input_layernorm.weight", config.hidden);
  append_matrix(group, prefix + "self_attn.q_proj.weight", config.hidden, config.hidden, initial_deviation);
  append_matrix(group, prefix + "self_attn.k_proj.weight", kv_width, config.hidden, initial_deviation);
  append_matrix(group, prefix + "self_attn.v_proj.weight", kv_width, config.hidden, initial_deviation);
  append_matrix(group, prefix + "self_attn.o_proj.weight", config.hidden, config.hidden, residual_deviation(config));
  append_gain(group, prefix + "post_attention_layernorm.weight", config.hidden);
  append_matrix(group, prefix + "mlp.gate_proj.weight", config.ffn, config.hidden, initial_deviation);
  append_matrix(group, prefix + "mlp.up_proj.weight", config.ffn, config.hidden, initial_deviation);
  append_matrix(group, prefix + "mlp.down_proj.weight", config.hidden, config.ffn, residual_deviation(config));
  return group;
}

}  // namespace

uint64_t Model::parameters() const {
  uint64_t elements = 0;
  for (const ParameterGroup& group : groups) elements += group.elements;
  return elements;
}

Model make_model(const ModelConfig& config) {
  if (std::vector<std::string> problems = problems_of(config); !problems.empty()) throw InputError(std::move(problems));

  Model model{.config = config, .blocks = {}, .groups = {}};
  const auto append_group = [&](ParameterGroup group) {
    model.groups.push_back(std::move(group));
    return static_cast<uint16_t>(model.groups.size() - 1);
  };
  const bool is_gpt2 = config.family == Family::Gpt2;
  const std::string table = is_gpt2 ? "wte.weight" : "model.embed_tokens.weight";

  ParameterGroup embedding_group{.name = "embedding", .tensors = {}}, tied_group{.name = "tied", .tensors = {}};
  if (is_gpt2) {
    append(embedding_group, "wpe.weight", {config.seq_len, config.hidden}, false,
           {Initial::Kind::Normal, initial_deviation});
  }
  append_matrix(config.tied_embeddings ? tied_group : embedding_group, table, config.vocab_size, config.hidden,
                initial_deviation);

  Block embedding{.kind = BlockKind::Embedding, .groups = {}, .name = "embedding"};
  if (embedding_group.elements > 0) embedding.groups.push_back(append_group(std::move(embedding_group)));
  if (config.tied_embeddings) embedding.groups.push_back(append_group(std::move(tied_group)));
  const uint16_t table_group = embedding.groups.back();
  model.blocks.push_back(std::move(embedding));

  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const uint16_t group = append_group(is_gpt2 ? gpt2_layer(config, layer) : llama_layer(config, layer));
    model.blocks.push_back(
        {.kind = BlockKind::Layer, .layer = layer, .groups = {group}, .name = fmt::format("layer {}", layer)});
  }

  ParameterGroup head_group{.name = "head", .tensors = {}};
  append_gain(head_group, is_gpt2 ? "ln_f.weight" : "model.norm.weight", config.hidden);
  if (is_gpt2) append_bias(head_group, "ln_f.bias", config.hidden);
  if (!config.tied_embeddings) {
    append_matrix(head_group, "lm_head.weight", config.vocab_size, config.hidden, initial_deviation);
  }
  Block head{.kind = BlockKind::Head, .groups = {append_group(std::move(head_group))}, .name = "head"};
  if (config.tied_embeddings) head.groups.push_back(table_group);
  model.blocks.push_back(std::move(head));
  return model;
}

}  // namespace shardpipe
