#include "train/run_config.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <string_view>

#include "base/error.h"
#include "train/memory_limit.h"

namespace shardpipe {
namespace {

constexpr int64_t most_steps = 1'000'000'000'000;
constexpr std::string_view nvme = "nvme:";
constexpr double largest_float = std::numeric_limits<float>::max();  // the optimizer computes in fp32
constexpr double smallest_float = std::numeric_limits<float>::min();

using Problems = std::vector<std::string>;

void check_integer(Problems& problems, std::string_view flag, int64_t found, int64_t least, int64_t most) {
  if (found < least || found > most)
    problems.push_back(fmt::format("{}: found {}, allowed: {} to {}", flag, found, least, most));
}

// NaN compares false with everything, so each rule says what is allowed and not what is wrong.
void check_not_negative(Problems& problems, std::string_view flag, double found) {
  if (!(found >= 0 && found <= largest_float))
    problems.push_back(fmt::format("{}: found {}, allowed: a number from 0 to {:.3g}", flag, found, largest_float));
}

// [0, 1), also after rounding to fp32: 1 - beta is divided by.
void check_below_one(Problems& problems, std::string_view flag, double found) {
  if (!(found >= 0 && static_cast<float>(found) < 1.0F))
    problems.push_back(fmt::format("{}: found {}, allowed: a number from 0 to below 1 (in fp32)", flag, found));
}

// A name must survive config.toml, which is UTF-8 text. Overlong forms and surrogates are refused as well.
bool is_utf8_without_nul(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) { return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0U; };
    const unsigned first = byte(0);
    const size_t length = first < 0x80   ? 1
                          : first < 0xC2 ? 0
                          : first < 0xE0 ? 2
                          : first < 0xF0 ? 3
                          : first < 0xF5 ? 4
                                         : 0;
    if (first == 0 || length == 0) return false;
    for (size_t k = 1; k < length; ++k)
      if ((byte(k) & 0xC0U) != 0x80U) return false;
    const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
    const bool beyond = (first == 0xED && byte(1) > 0x9F) || (first == 0xF4 && byte(1) > 0x8F);
    if (overlong || beyond) return false;
    i += length;
  }
  return true;
}

void check_optimizer(Problems& problems, const OptimizerConfig& config, int64_t steps) {
  check_not_negative(problems, "--lr", config.lr);
  check_not_negative(problems, "--min-lr", config.min_lr);
  if (config.min_lr > config.lr && config.lr >= 0)
    problems.push_back(
        fmt::format("--min-lr: found {}, above --lr {}; allowed: 0 to {}", config.min_lr, config.lr, config.lr));
  check_integer(problems, "--warmup-steps", config.warmup_steps, 0, most_steps);
  if (config.warmup_steps > steps && steps >= 1)
    problems.push_back(fmt::format("--warmup-steps: found {}, more than --steps {}; allowed: 0 to {}",
                                   config.warmup_steps, steps, steps));
  check_below_one(problems, "--beta1", config.beta1);
  check_below_one(problems, "--beta2", config.beta2);
  if (!(config.epsilon >= smallest_float && config.epsilon <= largest_float))
    problems.push_back(
        fmt::format("--epsilon: found {}, allowed: a number from {:.3g} (the smallest in fp32) to {:.3g}",
                    config.epsilon, smallest_float, largest_float));
  check_not_negative(problems, "--weight-decay", config.weight_decay);
  check_not_negative(problems, "--grad-clip", config.grad_clip);
}

void check_loss_scale(Problems& problems, const RunConfig& config) {
  const LossScaleSettings& scale = config.loss_scale;
  constexpr double most = 0x1p64;
  if (config.layout.precision != DType::Float16 && scale != LossScaleSettings{})
    problems.push_back(fmt::format(
        "--loss-scale, --loss-scale-…: found with --precision {}, whose gradients need no scaling; allowed: with "
        "--precision fp16",
        to_string(config.layout.precision)));
  if (!(scale.minimum > 0 && scale.minimum <= most))
    problems.push_back(fmt::format("--loss-scale-minimum: found {}, allowed: above 0, to {:.3g}", scale.minimum, most));
  if (!(scale.initial >= scale.minimum && scale.initial <= most))
    problems.push_back(fmt::format("--loss-scale: found {}, allowed: --loss-scale-minimum {} to {:.3g}", scale.initial,
                                   scale.minimum, most));
  if (!(scale.growth >= 1 && scale.growth <= 1024))
    problems.push_back(fmt::format("--loss-scale-growth: found {}, allowed: 1 to 1024", scale.growth));
  if (!(scale.backoff > 0 && scale.backoff < 1))
    problems.push_back(fmt::format("--loss-scale-backoff: found {}, allowed: above 0, below 1", scale.backoff));
  check_integer(problems, "--loss-scale-interval", scale.growth_interval, 1, most_steps);
  check_integer(problems, "--loss-scale-hysteresis", scale.hysteresis, 1, most_steps);
}

void check_data(Problems& problems, const RunConfig& config) {
  for (const std::string& file : config.data.data) {
    if (file.empty()) problems.emplace_back("--data: found an empty name, allowed: names of files");
    if (!is_utf8_without_nul(file))
      problems.emplace_back("--data: found a name that is not UTF-8 text, allowed: UTF-8 without NUL");
  }
  const double fraction = config.data.val_fraction;
  if (!(fraction >= 0 && fraction < 1))
    problems.push_back(fmt::format("--val-fraction: found {}, allowed: a number from 0 to below 1", fraction));
  check_integer(problems, "--eval-every", config.eval_every, 0, most_steps);
  check_integer(problems, "--eval-sequences", config.eval_sequences, 1, int64_t{1} << 40);
  if (config.eval_every > 0 && fraction == 0)
    problems.push_back(
        fmt::format("--eval-every: found {} with --val-fraction 0, which holds nothing out to evaluate on; "
                    "allowed: --eval-every 0, or a --val-fraction above 0",
                    config.eval_every));
}

// Milliseconds; a minute is long enough to look at.
void check_block_cost(Problems& problems, const RunConfig& config) {
  constexpr double most = 60'000;
  const std::vector<double>& cost = config.block_cost;
  if (cost.empty()) return;
  const std::string found = fmt::format("--block-cost {}", fmt::join(cost, ","));
  if (!is_synthetic(config.model))
    problems.push_back(
        fmt::format("{}: found with --model {}, whose blocks take what they take; allowed: with --model "
                    "synthetic",
                    found, config.model.name));
  if (cost.size() != 3 && cost.size() != 4)
    problems.push_back(
        fmt::format("{}: found {} numbers, allowed: 3, milliseconds of a layer's forward, input and weight "
                    "gradients, or a fourth for --recompute",
                    found, cost.size()));
  for (const double milliseconds : cost)
    if (!(milliseconds > 0 && milliseconds <= most)) {
      problems.push_back(fmt::format("{}: found {}, allowed: above 0, to {} milliseconds", found, milliseconds, most));
      return;
    }
}

}  // namespace

double learning_rate(const OptimizerConfig& config, int64_t step, int64_t steps) {
  check_invariant(1 <= step && step <= steps, "learning rate of step {} of {}", step, steps);
  if (step <= config.warmup_steps)
    return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  const double done =
      static_cast<double>(step - config.warmup_steps) / static_cast<double>(steps - config.warmup_steps);
  switch (config.lr_schedule) {
    case LrSchedule::Constant:
      return config.lr;
    case LrSchedule::Linear:
      return config.lr * (1 - done) + config.min_lr * done;
    case LrSchedule::Cosine: {
      const double high = 0.5 * (1 + std::cos(std::numbers::pi * done));  // 1 … 0
      return config.lr * high + config.min_lr * (1 - high);
    }
  }
  throw InvariantError("a learning-rate schedule without a rule");
}

std::string offload_folder(const RunConfig& config) {
  return config.offload_to.starts_with(nvme) ? config.offload_to.substr(nvme.size()) : "";
}

std::vector<std::string> problems_of(const RunConfig& config) {
  Problems problems = problems_of(config.model);
  const bool model_is_right =
      problems.empty();  // one that breaks a rule has no blocks: the layout's other rules are still told
  const Model model =
      model_is_right ? make_model(config.model) : Model{.config = config.model, .blocks = {}, .groups = {}};
  const Problems of_layout = problems_of(config.layout, model);
  problems.insert(problems.end(), of_layout.begin(), of_layout.end());
  check_integer(problems, "--steps", config.steps, 1, most_steps);
  if (config.seed > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    problems.push_back(fmt::format("--seed: found {}, allowed: 0 to {}", static_cast<int64_t>(config.seed),
                                   std::numeric_limits<int64_t>::max()));
  int64_t samples = 0;
  if (config.steps >= 1 && config.steps <= most_steps && config.layout.global_batch_size >= 1 &&
      __builtin_mul_overflow(config.steps, config.layout.global_batch_size, &samples))
    problems.push_back(
        fmt::format("--steps {} × --global-batch-size {}: found more sequences than 64 bits count, allowed: less",
                    config.steps, config.layout.global_batch_size));
  check_optimizer(problems, config.optimizer, config.steps);
  check_loss_scale(problems, config);
  check_data(problems, config);
  check_block_cost(problems, config);
  const bool to_files = config.offload_to.starts_with(nvme);
  if ((config.offload_to != "host" && offload_folder(config).empty()) || !is_utf8_without_nul(config.offload_to))
    problems.push_back(
        fmt::format("--offload-to: found '{}', allowed: host, or nvme:DIR with a folder on a disk", config.offload_to));
  if (to_files && config.layout.offload == "none")
    problems.push_back(fmt::format(
        "--offload-to {}: found without --offload, so there is nothing to put there; allowed: with --offload "
        "optimizer, params or activations",
        config.offload_to));
  if (to_files && is_synthetic(config.model))
    problems.push_back(
        fmt::format("--offload-to {}: found with --model synthetic, which copies nothing; allowed: --offload-to host",
                    config.offload_to));
  if (!bytes_in(config.memory_limit))
    problems.push_back(fmt::format(
        "--memory-limit: found '{}', allowed: none, or bytes such as 2500000000, 2.5GB or 8GiB", config.memory_limit));
  if (!is_utf8_without_nul(config.out))
    problems.emplace_back("--out: found a name that is not UTF-8 text, allowed: UTF-8 without NUL");
  if (config.trace && config.out.empty())
    problems.emplace_back(
        "--trace: found without --out, so there is nowhere to write trace.json; allowed: with --out DIR");
  return problems;
}

}  // namespace shardpipe
