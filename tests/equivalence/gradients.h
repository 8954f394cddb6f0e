// The gradients that the optimizer of a run reads, whole tensors put together from what each rank holds of them.
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "equivalence/course.h"

namespace shardpipe {

// Collects one step. Outlives the run that its observers watch.
class GradientCollector {
 public:
  GradientCollector(const RunConfig& config, int64_t step)
      : model_(make_model(config.model)), dp_(static_cast<uint64_t>(config.layout.dp)), step_(step) {
    for (const ParameterGroup& group : model_.groups) sums_.emplace_back(group.elements, NAN);
  }

  std::function<Observer(int world_rank)> observers() {
    return [this](int world_rank) -> Observer {
      return [this, replica = static_cast<uint64_t>(world_rank) % dp_](
                 int64_t step, const Action& action, const RankProgram& rank, const std::byte* arena) {
        if (step != step_ || action.kind != Kind::GradientNorm) return;
        const std::scoped_lock lock(mutex_);
        for (const Use& use : uses_of(rank, action)) {
          const Buffer& buffer = rank.buffers[use.buffer];
          if (buffer.role != Role::Gradient) continue;
          const Shards cut = shards(model_.groups[buffer.index].elements, dp_);
          const auto* values = reinterpret_cast<const float*>(arena + buffer.offset);
          const bool holds_all = buffer.bytes == cut.padded_elements() * sizeof(float);
          const Range range = action.extent == Extent::Whole ? Range{0, cut.elements} : owned(cut, replica);
          std::copy_n(values + (holds_all ? range.begin : 0), range.size(),
                      sums_[buffer.index].begin() + static_cast<std::ptrdiff_t>(range.begin));
        }
      };
    };
  }

  // Of the mean over `tokens` targets. What no rank has shown is NaN.
  Weights of_mean(double tokens) const {
    Weights gradients;
    for (size_t g = 0; g < model_.groups.size(); ++g)
      for (const Tensor& tensor : model_.groups[g].tensors)
        for (uint64_t i = 0; i < tensor.elements; ++i)
          gradients[tensor.name].push_back(static_cast<float>(double{sums_[g][tensor.offset + i]} / tokens));
    return gradients;
  }

 private:
  Model model_;
  uint64_t dp_;
  int64_t step_;
  std::mutex mutex_;
  std::vector<std::vector<float>> sums_;  // by parameter group
};

struct FirstStep {
  double loss = 0, tokens = 0, norm = 0;
  Weights gradients;  // of the mean loss
};

inline FirstStep first_step(RunConfig config, const SampleSource& samples) {
  config.steps = 1;
  config.optimizer.warmup_steps = 0;
  GradientCollector collector(config, 1);
  TrainHooks hooks;
  hooks.observer = collector.observers();
  const Course course = train(config, samples, hooks);
  const StepScalars& scalars = course.result.last.scalars;
  return {scalars.loss, scalars.tokens, scalars.gradient_norm, collector.of_mean(scalars.tokens)};
}

}  // namespace shardpipe
