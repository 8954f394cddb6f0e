// How a run went, step by step, by the trainer or straight down on one plain rank: what tests of layouts compare.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "equivalence/tiny.h"
#include "train/digest.h"
#include "train/plain_loop.h"
#include "train/trainer.h"

namespace shardpipe {

using Weights = std::map<std::string, std::vector<float>>;  // by tensor

struct Course {
  std::vector<double> losses, norms, learning_rates;  // by step
  std::string digest;
  Weights weights;
  TrainResult result;  // the trainer's
};

inline Course train(const RunConfig& config, const Step& step, const SampleSource& samples, TrainHooks hooks = {}) {
  Course course;
  hooks.keep_parameters = true;
  hooks.on_step = [&](const StepResult& result) {
    course.losses.push_back(result.scalars.loss);
    course.norms.push_back(result.scalars.gradient_norm);
    course.learning_rates.push_back(result.learning_rate);
  };
  course.result = run_training(config, step, {.train = samples, .held_out = nullptr}, hooks);
  course.digest = course.result.params_digest;
  course.weights = std::move(course.result.parameters);
  return course;
}
inline Course train(const RunConfig& config, const SampleSource& samples, const TrainHooks& hooks = {}) {
  const Model model = make_model(config.model);
  return train(config, make_step(model, config.layout, optimizer_states_per_element(config.optimizer.optimizer)),
               samples, hooks);
}
inline Course train(const RunConfig& config, const TrainHooks& hooks = {}) {
  return train(config, random_samples(config.seed, config.model.vocab_size), hooks);
}

// No program, no executor, no threads: of the layout only replicas, batch and cadence matter.
inline Course train_plain(const RunConfig& config, const SampleSource& samples) {
  PlainLoop loop(config.model, config.layout, config.optimizer, config.seed);
  loop.loss_scale_settings = config.loss_scale;
  const auto sequence = static_cast<size_t>(config.model.seq_len),
             batch = static_cast<size_t>(config.layout.global_batch_size);
  Course course;
  std::vector<int32_t> tokens(batch * sequence), targets(batch * sequence);
  for (int64_t k = 1; k <= config.steps; ++k) {
    for (size_t row = 0; row < batch; ++row)
      samples((k - 1) * config.layout.global_batch_size + static_cast<int64_t>(row),
              std::span(tokens).subspan(row * sequence, sequence),
              std::span(targets).subspan(row * sequence, sequence));
    course.learning_rates.push_back(learning_rate(config.optimizer, loop.steps_done + 1, config.steps));
    const PlainStep step = loop.step(tokens, targets, course.learning_rates.back());
    course.losses.push_back(step.loss);
    course.norms.push_back(step.gradient_norm);
  }
  std::map<std::string, Hash> hashes;
  for (size_t g = 0; g < loop.model.groups.size(); ++g)
    for (const Tensor& tensor : loop.model.groups[g].tensors) {
      const std::span<float> values = loop.parameter(g, tensor);
      hashes[tensor.name] = hash_tensor(values);
      course.weights[tensor.name].assign(values.begin(), values.end());
    }
  course.digest = params_digest(loop.model, hashes);
  return course;
}
inline Course train_plain(const RunConfig& config) {
  return train_plain(config, random_samples(config.seed, config.model.vocab_size));
}

// The parameters that a seed gives, before any step.
inline Weights initial_weights(const RunConfig& config) {
  PlainLoop loop(config.model, config.layout, config.optimizer, config.seed);
  Weights weights;
  for (size_t g = 0; g < loop.model.groups.size(); ++g)
    for (const Tensor& tensor : loop.model.groups[g].tensors) {
      const std::span<float> values = loop.parameter(g, tensor);
      weights[tensor.name].assign(values.begin(), values.end());
    }
  return weights;
}

inline std::string describe(const RunConfig& config) {
  const Layout& layout = config.layout;
  std::string text = fmt::format("{} pp {} dp {} zero {} m {} {} reduce every {}", config.model.name, layout.pp,
                                 layout.dp, layout.zero_text(), layout.micro_batches(), layout.schedule,
                                 layout.reduce_every == ReduceEvery::Micro ? "micro" : "step");
  if (layout.replicate > 1) text += fmt::format(" in {} copies", layout.replicate);
  if (layout.precision != DType::Float32) text += fmt::format(" {}", to_string(layout.precision));
  if (layout.reduce_dtype != DType::Float32) text += fmt::format(", reduced in {}", to_string(layout.reduce_dtype));
  if (layout.reproducible) text += ", reproducible";
  for (size_t rank = 0; rank < static_cast<size_t>(layout.pp); ++rank)
    if (!layout.reshards(rank)) text += fmt::format(", rank {} not resharded after forward", rank);
  if (layout.recompute != "none") text += ", recompute " + layout.recompute;
  if (layout.offload != "none")
    text += fmt::format(", offload {} in pieces of {} to {}", layout.offload, layout.offload_piece,
                        config.offload_to == "host" ? "host" : "files");
  if (!layout.stages.empty()) text += fmt::format(", stages {}", fmt::join(layout.stages, ","));
  return text;
}

// Equal to the last bit: digest, loss and norm of every step; and memory as planned.
inline testing::AssertionResult same_bits(const Course& layout, const Course& plain) {
  for (size_t k = 0; k < plain.losses.size(); ++k) {
    if (k >= layout.losses.size()) return testing::AssertionFailure() << "ended after " << k << " steps";
    if (layout.losses[k] != plain.losses[k])
      return testing::AssertionFailure() << fmt::format("loss of step {}: {:.17g}, of the plain loop {:.17g}", k + 1,
                                                        layout.losses[k], plain.losses[k]);
    if (layout.norms[k] != plain.norms[k])
      return testing::AssertionFailure() << fmt::format("gradient norm of step {}: {:.17g}, of the plain loop {:.17g}",
                                                        k + 1, layout.norms[k], plain.norms[k]);
  }
  if (layout.digest != plain.digest)
    return testing::AssertionFailure() << "digest " << layout.digest << ", of the plain loop " << plain.digest;
  if (layout.result.peak_bytes != layout.result.planned_peak_bytes)
    return testing::AssertionFailure() << fmt::format("peak bytes {}, planned {}",
                                                      fmt::join(layout.result.peak_bytes, " "),
                                                      fmt::join(layout.result.planned_peak_bytes, " "));
  return testing::AssertionSuccess();
}

// The largest difference of two arrays, as a share of the largest element of `expected`.
inline double relative_difference(const std::vector<float>& found, const std::vector<float>& expected) {
  if (found.size() != expected.size()) return INFINITY;
  double largest = 0, difference = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::abs(double{expected[i]}));
    difference = std::max(difference, std::abs(double{found[i]} - double{expected[i]}));
  }
  return difference == 0 ? 0 : difference / largest;
}

// before - after, by tensor: what a step changed.
inline Weights change(const Weights& before, const Weights& after) {
  Weights difference;
  for (const auto& [tensor, values] : before) {
    std::vector<float>& out = difference[tensor];
    for (size_t i = 0; i < values.size(); ++i) out.push_back(values[i] - after.at(tensor)[i]);
  }
  return difference;
}

inline double length(const Weights& weights) {
  double squares = 0;
  for (const auto& [tensor, values] : weights)
    for (const float x : values) squares += double{x} * double{x};
  return std::sqrt(squares);
}

}  // namespace shardpipe
