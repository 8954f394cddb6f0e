#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/nearest_name.h"
#include "model/shape/model.h"

namespace shardpipe {
namespace {

ModelConfig gpt2(std::string name, int64_t layers, int64_t hidden, int64_t heads, int64_t vocab_size, int64_t seq_len) {
  return {.name = std::move(name),
          .family = Family::Gpt2,
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = heads,
          .ffn = 4 * hidden,
          .vocab_size = vocab_size,
          .seq_len = seq_len,
          .tied_embeddings = true};
}

struct LlamaSizes {
  int64_t layers, hidden, heads, kv_heads, ffn, vocab_size, seq_len;
  bool tied_embeddings;
  double rope_theta;
};

ModelConfig llama(std::string name, const LlamaSizes& sizes) {
  return {.name = std::move(name),
          .family = Family::Llama,
          .layers = sizes.layers,
          .hidden = sizes.hidden,
          .heads = sizes.heads,
          .kv_heads = sizes.kv_heads,
          .ffn = sizes.ffn,
          .vocab_size = sizes.vocab_size,
          .seq_len = sizes.seq_len,
          .tied_embeddings = sizes.tied_embeddings,
          .rope_theta = sizes.rope_theta};
}

// Sizes as published: Radford et al. 2019 (GPT-2), Grattafiori et al. 2024, arXiv:2407.21783 (Llama 3), the model card
// of Llama 3.2 1B. llama-1b keeps Llama 3's plain rotary angles: the stretching for its long contexts only matters past
// 8,192 tokens.
std::vector<ModelConfig> all_presets() {
  constexpr int64_t byte_vocabulary = 256, gpt2_vocabulary = 50257, llama3_vocabulary = 128256;
  return {
      gpt2("gpt2-tiny", 4, 64, 4, byte_vocabulary, 64),
      llama("llama-tiny", {4, 64, 4, 2, 192, byte_vocabulary, 64, false, 10000.0}),
      gpt2("synthetic", 8, 64, 4, byte_vocabulary, 64),
      gpt2("gpt2-10m", 8, 320, 5, byte_vocabulary, 256),
      gpt2("gpt2-124m", 12, 768, 12, gpt2_vocabulary, 1024),
      gpt2("gpt2-350m", 24, 1024, 16, gpt2_vocabulary, 1024),
      gpt2("gpt2-774m", 36, 1280, 20, gpt2_vocabulary, 1024),
      gpt2("gpt2-1.5b", 48, 1600, 25, gpt2_vocabulary, 1024),
      llama("llama-1b", {16, 2048, 32, 8, 8192, llama3_vocabulary, 8192, true, 500000.0}),
      llama("llama-8b", {32, 4096, 32, 8, 14336, llama3_vocabulary, 8192, false, 500000.0}),
      llama("llama-70b", {80, 8192, 64, 8, 28672, llama3_vocabulary, 8192, false, 500000.0}),
  };
}

// "60 or 65", "5": the multiples of `factor` beside `value`, without 0.
std::string multiples_beside(int64_t value, int64_t factor) {
  const int64_t below = value / factor * factor;
  return below > 0 ? fmt::format("{} or {}", below, below + factor) : fmt::format("{}", below + factor);
}

}  // namespace

std::vector<std::string> model_presets() {
  std::vector<std::string> names;
  for (const ModelConfig& preset : all_presets()) names.push_back(preset.name);
  return names;
}

ModelConfig model_preset(std::string_view name) {
  for (const ModelConfig& preset : all_presets()) {
    if (preset.name == name) return preset;
  }
  const std::vector<std::string> names = model_presets();
  throw InputError(
      fmt::format("--model: found '{}', allowed: {}{}", name, fmt::join(names, ", "), did_you_mean(name, names)));
}

bool is_synthetic(const ModelConfig& config) { return config.name == "synthetic"; }

std::vector<std::string> problems_of(const ModelConfig& config) {
  std::vector<std::string> problems;
  const auto problem = [&]<typename... Args>(fmt::format_string<Args...> text, Args&&... args) {
    problems.push_back(fmt::format(text, std::forward<Args>(args)...));
  };

  // Layers are counted in 16 bits with the blocks and groups beside them; sizes multiply in pairs within 63 bits.
  struct Size {
    const char* flag;
    int64_t value, most;
  };
  const std::array sizes = {Size{"--layers", config.layers, 65000},    Size{"--hidden", config.hidden, 1 << 20},
                            Size{"--heads", config.heads, 1 << 20},    Size{"--kv-heads", config.kv_heads, 1 << 20},
                            Size{"--ffn", config.ffn, 1 << 24},        Size{"--vocab-size", config.vocab_size, 1 << 30},
                            Size{"--seq-len", config.seq_len, 1 << 30}};
  for (const Size& size : sizes)
    if (size.value < 1 || size.value > size.most)
      problem("{}: found {}, allowed: 1 to {}", size.flag, size.value, size.most);
  if (!problems.empty()) return problems;  // what follows divides by these

  if (config.hidden % config.heads != 0) {
    problem("--hidden: found {}, which --heads {} does not divide; allowed: a multiple of it, {} would be",
            config.hidden, config.heads, multiples_beside(config.hidden, config.heads));
  } else if (config.family == Family::Llama && config.hidden / config.heads % 2 != 0) {
    problem(
        "--hidden: found {}, which --heads {} cuts into heads of {}; allowed: heads of an even size, for rotary "
        "positions: {} would do",
        config.hidden, config.heads, config.hidden / config.heads, multiples_beside(config.hidden, 2 * config.heads));
  }
  if (config.family == Family::Gpt2 && config.kv_heads != config.heads)
    problem("--kv-heads: found {}, allowed: {}, as --heads says: GPT-2 has a key head for every query head",
            config.kv_heads, config.heads);
  if (config.family == Family::Llama && config.heads % config.kv_heads != 0) {
    int64_t nearest = 1;
    for (int64_t divisor = 1; divisor <= config.heads; ++divisor)
      if (config.heads % divisor == 0 && std::abs(divisor - config.kv_heads) < std::abs(nearest - config.kv_heads))
        nearest = divisor;
    problem("--kv-heads: found {}, which does not divide --heads {}; allowed: a divisor of it, {} would be",
            config.kv_heads, config.heads, nearest);
  }
  if (!(config.norm_epsilon > 0 && config.norm_epsilon < 1))
    problem("--norm-epsilon: found {}, allowed: a number between 0 and 1", config.norm_epsilon);
  if (config.family == Family::Llama && !(config.rope_theta >= 1 && std::isfinite(config.rope_theta)))
    problem("--rope-theta: found {}, allowed: a finite number, 1 or more", config.rope_theta);
  if (config.family == Family::Gpt2 && config.rope_theta != ModelConfig().rope_theta)
    problem("--rope-theta: found {}, allowed: none for {}: GPT-2 has no rotary positions", config.rope_theta,
            config.name);
  if (!(config.dropout >= 0 && static_cast<float>(config.dropout) < 1))  // kernels have it as a float
    problem("--dropout: found {}, allowed: a number from 0 to below 1", config.dropout);
  else if (config.dropout > 0 && (config.family == Family::Llama || is_synthetic(config)))
    problem("--dropout: found {}, allowed: 0 for {}: only GPT-2 has dropout", config.dropout, config.name);
  return problems;
}

}  // namespace shardpipe
