// One block with memory of its own, whose borders are watched.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
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
    for (std::vector<float>& values : parameters) round_to(shape.dtype, values);
    for (std::vector<float>* values : {&input, &output_gradient}) round_to(shape.dtype, *values);
    output.assign(width, nan);
    input_gradient.assign(width, nan);
    const auto vocabulary = static_cast<int32_t>(model.config.vocab_size);
    std::uniform_int_distribution<int32_t> token(0, vocabulary - 1), target(-1, vocabulary - 1);  // -1: ignored
    for (int64_t i = 0; i < shape.tokens(); ++i) {
      tokens.push_back(token(random));
      targets.push_back(i == 1 ? -1 : target(random));
    }
  }

  // Of the values as shape.dtype stores them.
  BlockViews views() {
    stored_input = stored(input);
    stored_output = stored(output);
    stored_output_gradient = stored(output_gradient);
    stored_input_gradient = stored(input_gradient);
    BlockViews all{.shape = shape,
                   .tokens = tokens.data(),
                   .targets = targets.data(),
                   .accumulate = accumulate,
                   .input = stored_input.data(),
                   .output = stored_output.data(),
                   .output_gradient = stored_output_gradient.data(),
                   .input_gradient = stored_input_gradient.data(),
                   .saved = saved.data(),
                   .recomputed = recomputed.data(),
                   .recompute = recompute,
                   .between = between.data(),
                   .workspace = workspace.data(),
                   .loss = &loss,
                   .dropout = drops ? &draw : nullptr,
                   .first_row = first_row,
                   .loss_scale = loss_scale ? &*loss_scale : nullptr};
    for (size_t i = 0; i < parameters.size(); ++i) {
      stored_parameters[i] = stored(parameters[i]);
      all.parameters[i] = stored_parameters[i].data();
      all.gradients[i] = gradients[i].data();
    }
    return all;
  }
  void forward() { call(block_forward); }
  void compute_again() { call(block_recompute); }
  void backward_input() { call(block_backward_input); }
  void backward_weight() { call(block_backward_weight); }
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

  static void round_to(DType dtype, std::vector<float>& values) {
    with_element(dtype, [&]<Element T>() {
      for (float& value : values) value = to_float(from_float<T>(value));
    });
  }
  std::vector<std::byte> stored(const std::vector<float>& values) const {
    std::vector<std::byte> memory(values.size() * bytes_of(shape.dtype));
    with_element(shape.dtype, [&]<Element T>() {
      for (size_t i = 0; i < values.size(); ++i) {
        const T element = from_float<T>(values[i]);
        std::memcpy(memory.data() + i * sizeof(T), &element, sizeof(T));
      }
    });
    return memory;
  }
  void load(const std::vector<std::byte>& memory, std::vector<float>& values) const {
    with_element(shape.dtype, [&]<Element T>() {
      for (size_t i = 0; i < values.size(); ++i) {
        T element;
        std::memcpy(&element, memory.data() + i * sizeof(T), sizeof(T));
        values[i] = to_float(element);
      }
    });
  }
  void call(void (*function)(const Model&, const Block&, const BlockViews&)) {
    function(model, block, views());
    load(stored_output, output);
    load(stored_input_gradient, input_gradient);
  }

  static constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const Model& model;
  const Block& block;
  MicroBatchShape shape;
  Recompute recompute;
  BlockBytes bytes;
  WatchedMemory saved, recomputed, between, workspace;
  std::vector<std::vector<float>> parameters, gradients;              // in the order of Block::groups
  std::vector<float> input, output, output_gradient, input_gradient;  // values that shape.dtype can store
  std::array<std::vector<std::byte>, 2> stored_parameters;
  std::vector<std::byte> stored_input, stored_output, stored_output_gradient, stored_input_gradient;
  std::vector<int32_t> tokens, targets;
  std::array<bool, 2> accumulate{};
  LossSlot loss;
  DropoutDraw draw{.seed = 5, .step = 9, .first_sample = 40};
  uint64_t first_row = 3;
  bool drops = true;
  std::optional<float> loss_scale;
};

// Odd sizes, fewer tokens than the model could read.
inline constexpr MicroBatchShape odd_shape{2, 11};

struct BlockCase {
  std::string name;
  ModelConfig model;
  size_t block;  // of 0: embedding, 1: layer, 2: head
  DType dtype = DType::Float32;

  MicroBatchShape shape() const { return {odd_shape.batch, odd_shape.sequence, dtype}; }
};

inline void PrintTo(const BlockCase& block_case, std::ostream* out) { *out << block_case.name; }

inline std::vector<BlockCase> block_cases(std::initializer_list<DType> dtypes = {DType::Float32}) {
  const auto config = [](Family family, int64_t kv_heads, bool tied, double dropout = 0) {
    return ModelConfig{.name = "test",
                       .family = family,
                       .layers = 1,
                       .hidden = 24,
                       .heads = 4,
                       .kv_heads = kv_heads,
                       .ffn = 40,
                       .vocab_size = 37,
                       .seq_len = 16,
                       .tied_embeddings = tied,
                       .dropout = dropout};
  };
  std::vector<BlockCase> cases;
  for (const auto& [name, model] : {std::pair{std::string("Gpt2Tied"), config(Family::Gpt2, 4, true)},
                                    {"Gpt2Untied", config(Family::Gpt2, 4, false)},
                                    {"Gpt2UntiedWithDropout", config(Family::Gpt2, 4, false, 0.3)},
                                    {"LlamaTiedOneKeyHead", config(Family::Llama, 1, true)},
                                    {"LlamaUntiedTwoKeyHeads", config(Family::Llama, 2, false)}}) {
    for (const size_t block : {0, 1, 2}) {
      for (const DType dtype : dtypes) {
        const std::string suffix = dtype == DType::Float32 ? "" : std::string("_") + std::string(to_string(dtype));
        cases.push_back({name + std::array{"Embedding", "Layer", "Head"}[block] + suffix, model, block, dtype});
      }
    }
  }
  return cases;
}

inline bool same_bits(std::span<const float> left, std::span<const float> right) {
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size_bytes()) == 0;
}

}  // namespace shardpipe
