// One block with memory of its own, whose borders are watched.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/blocks/blocks.h"
#include "model/shape/pieces.h"

namespace shardpipe {

// Bytes that start aligned and hold NaNs, between two borders.
class WatchedMemory {
 public:
  explicit WatchedMemory(uint64_t bytes) : size_(bytes), storage_(bytes + 3 * border_bytes) {
    std::memset(storage_.data(), border, storage_.size());
    std::memset(data(), nan_byte, size_);
  }
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data()) + border_bytes;
    return storage_.data() + border_bytes +
           (piece_alignment_bytes - address % piece_alignment_bytes) % piece_alignment_bytes;
  }
  void fill_with_nans() { std::memset(data(), nan_byte, size_); }
  bool borders_are_whole() {
    const auto is_border = [](std::byte byte) { return byte == std::byte{border}; };
    return std::all_of(storage_.data(), data(), is_border) &&
           std::all_of(data() + size_, storage_.data() + storage_.size(), is_border);
  }
  // Whether anything was written to the last aligned line: the size is not more than what is used.
  bool is_used_to_the_end() {
    const auto is_written = [](std::byte byte) { return byte != std::byte{nan_byte}; };
    return size_ == 0 || std::any_of(data() + size_ - piece_alignment_bytes, data() + size_, is_written);
  }

 private:
  static constexpr size_t border_bytes = 256;
  static constexpr unsigned char border = 0xA5, nan_byte = 0xFF;
  uint64_t size_;
  std::vector<std::byte> storage_;
};

struct BlockRun {
  BlockRun(const Model& of_model, const Block& of_block, MicroBatchShape of_shape, uint64_t seed,
           Recompute of_recompute = Recompute::None)
      : model(of_model),
        block(of_block),
        shape(of_shape),
        recompute(of_recompute),
        bytes(block_bytes(model, block, shape, recompute)),
        saved(bytes.saved),
        recomputed(bytes.recomputed),
        between(bytes.between),
        workspace(bytes.workspace) {
    std::mt19937_64 random(seed);
    const auto normal = [&](size_t count, double deviation, double mean = 0) {
      std::normal_distribution<double> distribution(mean, deviation);
      std::vector<float> values(count);
      for (float& value : values) value = static_cast<float>(distribution(random));
      return values;
    };
    for (const uint16_t g : block.groups) {
      std::vector<float> values;
      for (const Tensor& tensor :
           model.groups[g].tensors) {  // gains and biases away from 1 and 0, so that each matters
        const bool is_gain = tensor.initial.kind == Initial::Kind::Ones;
        const std::vector<float> of_tensor = normal(tensor.elements, 0.2, is_gain ? 1 : 0);
        values.insert(values.end(), of_tensor.begin(), of_tensor.end());
      }
      gradients.emplace_back(values.size(), nan);
      parameters.push_back(std::move(values));
    }
    const auto width = static_cast<size_t>(shape.tokens() * model.config.hidden);
    input = normal(width, 1);
    output_gradient = normal(width, 1);
    output.assign(width, nan);
    input_gradient.assign(width, nan);
    const auto vocabulary = static_cast<int32_t>(model.config.vocab_size);
    std::uniform_int_distribution<int32_t> token(0, vocabulary - 1), target(-1, vocabulary - 1);  // -1: ignored
    for (int64_t i = 0; i < shape.tokens(); ++i) {
      tokens.push_back(token(random));
      targets.push_back(i == 1 ? -1 : target(random));
    }
  }

  BlockViews views() {
    BlockViews all{.shape = shape,
                   .tokens = tokens.data(),
                   .targets = targets.data(),
                   .accumulate = accumulate,
                   .input = input.data(),
                   .output = output.data(),
                   .output_gradient = output_gradient.data(),
                   .input_gradient = input_gradient.data(),
                   .saved = saved.data(),
                   .recomputed = recomputed.data(),
                   .recompute = recompute,
                   .between = between.data(),
                   .workspace = workspace.data(),
                   .loss = &loss};
    for (size_t i = 0; i < parameters.size(); ++i) {
      all.parameters[i] = parameters[i].data();
      all.gradients[i] = gradients[i].data();
    }
    return all;
  }
  void forward() { block_forward(model, block, views()); }
  void compute_again() { block_recompute(model, block, views()); }
  void backward_input() { block_backward_input(model, block, views()); }
  void backward_weight() { block_backward_weight(model, block, views()); }
  void run() {
    forward();
    backward_input();
    backward_weight();
  }

  // What the gradients are those of: the head's loss, or Σ output · output_gradient.
  double objective() {
    forward();
    if (block.kind == BlockKind::Head) return loss.loss;
    double sum = 0;
    for (size_t i = 0; i < output.size(); ++i) sum += double{output[i]} * double{output_gradient[i]};
    return sum;
  }

  static constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const Model& model;
  const Block& block;
  MicroBatchShape shape;
  Recompute recompute;
  BlockBytes bytes;
  WatchedMemory saved, recomputed, between, workspace;
  std::vector<std::vector<float>> parameters, gradients;  // in the order of Block::groups
  std::vector<float> input, output, output_gradient, input_gradient;
  std::vector<int32_t> tokens, targets;
  std::array<bool, 2> accumulate{};
  LossSlot loss;
};

// Odd sizes, fewer tokens than the model could read.
inline constexpr MicroBatchShape odd_shape{2, 11};

struct BlockCase {
  std::string name;
  ModelConfig model;
  size_t block;  // of 0: embedding, 1: layer, 2: head
};

inline void PrintTo(const BlockCase& block_case, std::ostream* out) { *out << block_case.name; }

inline std::vector<BlockCase> block_cases() {
  const auto config = [](Family family, int64_t kv_heads, bool tied) {
    return ModelConfig{.name = "test",
                       .family = family,
                       .layers = 1,
                       .hidden = 24,
                       .heads = 4,
                       .kv_heads = kv_heads,
                       .ffn = 40,
                       .vocab_size = 37,
                       .seq_len = 16,
                       .tied_embeddings = tied};
  };
  std::vector<BlockCase> cases;
  for (const auto& [name, model] : {std::pair{"Gpt2Tied", config(Family::Gpt2, 4, true)},
                                    {"Gpt2Untied", config(Family::Gpt2, 4, false)},
                                    {"LlamaTiedOneKeyHead", config(Family::Llama, 1, true)},
                                    {"LlamaUntiedTwoKeyHeads", config(Family::Llama, 2, false)}}) {
    for (const size_t block : {0, 1, 2}) {
      cases.push_back({std::string(name) + std::array{"Embedding", "Layer", "Head"}[block], model, block});
    }
  }
  return cases;
}

inline bool same_bits(std::span<const float> left, std::span<const float> right) {
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size_bytes()) == 0;
}

}  // namespace shardpipe
