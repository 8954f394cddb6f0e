// Reads what make_goldens.py wrote: a model, its data, and how PyTorch trained it.
#pragma once
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/shape/model.h"
#include "test_paths.h"
#include "train/run_config.h"

namespace shardpipe {

struct GoldenTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> initial;
  std::vector<float> gradient;  // first step's, of the mean loss, not clipped
};

struct Golden {
  ModelConfig model;
  OptimizerConfig optimizer;
  int64_t steps, batch;                                          // sequences a step
  std::vector<int32_t> tokens, targets;                          // [steps, batch, sequence]
  std::vector<GoldenTensor> tensors;                             // canonical order
  std::vector<double> losses, gradient_norms;                    // by step, computed in float32
  std::vector<double> bfloat16_losses, bfloat16_gradient_norms;  // likewise, under autocast to bfloat16

  // [batch, sequence] of step 0 …
  std::span<const int32_t> step_of(const std::vector<int32_t>& matrix, int64_t step) const {
    const auto size = static_cast<size_t>(batch * model.seq_len);
    return std::span(matrix).subspan(static_cast<size_t>(step) * size, size);
  }
};

// Throws when a file is missing, or is not as long as the sizes say.
inline Golden read_golden(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(TEST_DATA_DIR) / "parity" / "goldens";
  std::ifstream text(folder / (name + ".json"));
  const nlohmann::json json = nlohmann::json::parse(text);
  const nlohmann::json &model = json.at("model"), &optimizer = json.at("optimizer");
  Golden golden{.model = {.name = name,
                          .family = model.at("family") == "gpt2" ? Family::Gpt2 : Family::Llama,
                          .layers = model.at("layers"),
                          .hidden = model.at("hidden"),
                          .heads = model.at("heads"),
                          .kv_heads = model.at("kv_heads"),
                          .ffn = model.at("ffn"),
                          .vocab_size = model.at("vocab_size"),
                          .seq_len = model.at("seq_len"),
                          .tied_embeddings = model.at("tied_embeddings"),
                          .norm_epsilon = model.at("norm_epsilon"),
                          .rope_theta = model.at("rope_theta")},
                .optimizer = {.lr = optimizer.at("lr"),
                              .beta1 = optimizer.at("beta1"),
                              .beta2 = optimizer.at("beta2"),
                              .epsilon = optimizer.at("epsilon"),
                              .weight_decay = optimizer.at("weight_decay"),
                              .grad_clip = optimizer.at("grad_clip")},
                .steps = json.at("steps"),
                .batch = json.at("batch"),
                .tokens = {},
                .targets = {},
                .tensors = {},
                .losses = json.at("losses"),
                .gradient_norms = json.at("gradient_norms"),
                .bfloat16_losses = json.at("bfloat16_losses"),
                .bfloat16_gradient_norms = json.at("bfloat16_gradient_norms")};

  std::ifstream binary(folder / (name + ".bin"), std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(binary), {}};
  size_t offset = 0;
  const auto read = [&](auto& values, size_t count) {
    values.resize(count);
    const size_t size = count * sizeof(values[0]);
    if (offset + size > bytes.size()) throw std::runtime_error(name + ".bin is too short");
    std::memcpy(values.data(), bytes.data() + offset, size);
    offset += size;
  };
  const auto data_size = static_cast<size_t>(golden.steps * golden.batch * golden.model.seq_len);
  read(golden.tokens, data_size);
  read(golden.targets, data_size);
  for (const nlohmann::json& tensor : json.at("tensors")) {
    golden.tensors.push_back({.name = tensor.at("name"), .shape = tensor.at("shape"), .initial = {}, .gradient = {}});
  }
  const auto elements = [](const GoldenTensor& tensor) {
    size_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
    return count;
  };
  for (GoldenTensor& tensor : golden.tensors) read(tensor.initial, elements(tensor));
  for (GoldenTensor& tensor : golden.tensors) read(tensor.gradient, elements(tensor));
  if (offset != bytes.size()) throw std::runtime_error(name + ".bin is too long");
  return golden;
}

}  // namespace shardpipe
