// A training step written straight down, without pipeline, shards, threads or program: the definition of the bits that
// every layout must give. It calls the same blocks and kernels as the trainer, so a difference between the two is one
// of order, and a fault of the trainer.
//
// The order of every sum, which is what decides bits:
//   1. Replica r in [0, dp), micro-batch m ascending, rows in sample order (sample_number in train/trainer.h). Forward
//   through all
//      blocks; then, last block first, backward_input and backward_weight.
//   2. Each use of a parameter group by a block has a gradient of its own: the tied group has two, the embedding's and
//   the head's.
//      ReduceEvery::Step:  a replica's micro-batches: the first overwrites, the others are accumulated by the kernels;
//      then the replicas'
//                          sums are summed pairwise in replica order (kernels::sum_in_order).
//      ReduceEvery::Micro: each micro-batch's gradients are summed over replicas likewise; these sums are accumulated,
//      m ascending.
//      With --reduce-dtype bf16 each replica's term is rounded before either sum.
//   3. The tied group's gradient is the embedding's plus the head's.
//   4. Norm: Σ over groups (canonical order), and in a group over its dp shards (shard/shard.h), of
//   kernels::sum_of_squares, in double;
//      its square root divided by the number of counted targets of the step.
//   5. factor = min(1, grad_clip / (norm + 1e-6)) in double (1 without clipping); gradient_scale = float(factor /
//   targets). In fp16 the head's gradients carry a factor (program/loss_scale.h), by which norm and scale are divided.
//   6. The optimizer, elementwise, on fp32. A step without any counted target, or with a gradient that is not finite,
//   changes nothing.
// The loss is the sum of LossSlot.loss, replica by replica and in a replica by micro-batch, in double, divided by the
// targets.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/exact_squares.h"
#include "kernels/cpu/optimizer.h"
#include "layout/layout.h"
#include "model/blocks/blocks.h"
#include "model/shape/model.h"
#include "model/shape/pieces.h"
#include "program/loss_scale.h"
#include "shard/shard.h"
#include "train/run_config.h"

namespace shardpipe {

// Bytes that start on a multiple of piece_alignment_bytes.
class PieceMemory {
 public:
  explicit PieceMemory(uint64_t bytes)
      : bytes_(static_cast<std::byte*>(::operator new(std::max<uint64_t>(bytes, 1), alignment))) {}
  std::byte* data() const { return bytes_.get(); }

 private:
  static constexpr std::align_val_t alignment{piece_alignment_bytes};
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, alignment); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
};

// What a plain step passes through, in the order in which a difference between two runs would first show.
enum class PlainKind : uint8_t {
  Activation,          // the input of block `index`, of micro-batch and replica `part`
  ActivationGradient,  // its gradient
  OwnGradient,  // of parameter group `index` by its use `use`, of one micro-batch and replica `part`, when reduced by
                // itself
  Gradient,     // of parameter group `index`, reduced and tied uses summed: shard `part`
  Parameters,   // after the update: shard `part`
};
struct PlainName {
  PlainKind kind{};
  uint16_t micro_batch = 0, index = 0, use = 0;
  uint64_t part = 0;
  auto operator<=>(const PlainName&) const = default;
};

struct PlainStep {
  double loss = 0;           // mean over the counted targets
  double tokens = 0;         // counted targets
  double gradient_norm = 0;  // of the mean loss, before clipping
  double gradient_scale = 0;
  double loss_scale = 1;  // of fp16, in this step
  bool skipped = false;   // a gradient was not finite: nothing was updated
};

struct PlainLoop {
  // Of the layout only dp, micro_batch_size, global_batch_size, precision, reduce_every, reduce_dtype and reproducible
  // matter. Starts from the seed's initial values.
  PlainLoop(const ModelConfig& config, const Layout& plain_layout, const OptimizerConfig& optimizer_config,
            uint64_t seed)
      : model(make_model(config)),
        layout(plain_layout),
        optimizer(optimizer_config),
        dtype(plain_layout.precision),
        dropout{.seed = seed} {
    for (const ParameterGroup& group : model.groups) {
      parameters.emplace_back(group.elements);
      gradients.emplace_back(group.elements);
      m.emplace_back(group.elements);
      v.emplace_back(group.elements);
      initialise(group, seed, 0, group.elements, parameters.back().data());
    }
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      for (size_t slot = 0; slot < model.blocks[b].groups.size(); ++slot) uses.push_back({b, slot});
    }
  }

  // tokens, targets [global batch, sequence] in sample order: replica 0's micro-batches first.
  PlainStep step(std::span<const int32_t> tokens, std::span<const int32_t> targets, double learning_rate) {
    const auto dp = static_cast<size_t>(layout.dp), micro_batches = static_cast<size_t>(layout.micro_batches());
    const auto sequence = static_cast<int64_t>(tokens.size()) / layout.global_batch_size;
    const MicroBatchShape shape{layout.micro_batch_size, sequence, dtype};
    const int64_t batch_tokens = layout.global_batch_size * sequence;
    const bool scales = dtype == DType::Float16;
    if (scales && steps_run == 0) loss_scale = initial_loss_scale(loss_scale_settings, batch_tokens);
    ++steps_run;
    dropout.step = static_cast<uint64_t>(steps_run);
    dropout.first_sample = static_cast<uint64_t>((steps_run - 1) * layout.global_batch_size);
    store_parameters();
    const auto rows = [&](std::span<const int32_t> matrix, size_t replica, size_t micro_batch) {
      return matrix.data() + (replica * micro_batches + micro_batch) * static_cast<size_t>(shape.tokens());
    };

    std::vector<LossSlot> losses(dp * micro_batches);
    UseGradients reduced = zeros();
    int64_t lost = 0;  // elements that were out of the range of exact sums
    if (layout.reproducible) {
      // The last first, and both uses of a tied group in one sum: no order may matter.
      ExactSums sums = exact_zeros();
      UseGradients own = zeros();
      for (size_t i = micro_batches; i-- > 0;)
        for (size_t r = dp; r-- > 0;) {
          losses[r * micro_batches + i] = micro_batch_gradients(shape, rows(tokens, r, i), rows(targets, r, i), own,
                                                                /*accumulate=*/false, r, i);
          for (size_t u = 0; record && u < uses.size(); ++u)
            record(name(PlainKind::OwnGradient, i, group_of(uses[u]), use_number(u), r), own[u]);
          for (size_t u = 0; u < uses.size(); ++u)
            lost += kernels::exact_add(exact_form(), own[u].data(), sums[group_of(uses[u])].data(),
                                       static_cast<int64_t>(own[u].size()), /*accumulate=*/true);
        }
      for (size_t g = 0; g < sums.size(); ++g)
        kernels::exact_to_float(exact_form(), sums[g].data(), gradients[g].data(),
                                static_cast<int64_t>(sums[g].size()));
    } else if (layout.reduce_every == ReduceEvery::Step) {
      std::vector<UseGradients> of_replica(dp, zeros());
      for (size_t r = 0; r < dp; ++r) {
        for (size_t i = 0; i < micro_batches; ++i) {
          losses[r * micro_batches + i] = micro_batch_gradients(shape, rows(tokens, r, i), rows(targets, r, i),
                                                                of_replica[r], /*accumulate=*/i > 0, r, i);
        }
      }
      sum_replicas(of_replica, reduced, /*accumulate=*/false);
    } else {
      std::vector<UseGradients> of_replica(dp, zeros());
      for (size_t i = 0; i < micro_batches; ++i) {
        for (size_t r = 0; r < dp; ++r) {
          losses[r * micro_batches + i] = micro_batch_gradients(shape, rows(tokens, r, i), rows(targets, r, i),
                                                                of_replica[r], /*accumulate=*/false, r, i);
          for (size_t u = 0; record && u < uses.size(); ++u)
            record(name(PlainKind::OwnGradient, i, group_of(uses[u]), use_number(u), r), of_replica[r][u]);
        }
        sum_replicas(of_replica, reduced, /*accumulate=*/i > 0);
      }
    }
    if (!layout.reproducible) sum_uses(reduced);
    record_shards(PlainKind::Gradient, gradients);

    PlainStep result{.loss_scale = loss_scale.scale};
    for (const LossSlot& slot : losses) {  // replica-major
      result.loss += slot.loss;
      result.tokens += slot.tokens;
    }
    if (result.tokens == 0) {
      ++steps_done;
      record_shards(PlainKind::Parameters, parameters);
      return result;
    }
    result.loss /= result.tokens;
    const double squares = sum_of_squares(), factor_of_loss = loss_scale.factor;
    result.skipped = lost > 0 || !std::isfinite(squares);
    result.gradient_norm = result.skipped ? std::numeric_limits<double>::infinity()
                                          : std::sqrt(squares) / (result.tokens * factor_of_loss);
    if (scales) loss_scale = next_loss_scale(loss_scale, loss_scale_settings, result.skipped, batch_tokens);
    if (result.skipped) {
      record_shards(PlainKind::Parameters, parameters);
      return result;
    }
    ++steps_done;
    const double factor =
        optimizer.grad_clip > 0 ? std::min(1.0, optimizer.grad_clip / (result.gradient_norm + 1e-6)) : 1.0;
    result.gradient_scale = factor / (result.tokens * factor_of_loss);
    update(static_cast<float>(learning_rate), static_cast<float>(result.gradient_scale));
    record_shards(PlainKind::Parameters, parameters);
    return result;
  }

  std::span<float> parameter(size_t group, const Tensor& tensor) {
    return std::span(parameters[group]).subspan(tensor.offset, tensor.elements);
  }
  std::span<const float> gradient(size_t group, const Tensor& tensor) const {
    return std::span(gradients[group]).subspan(tensor.offset, tensor.elements);
  }

  // Called with every value of a step, when set.
  std::function<void(const PlainName&, std::span<const float>)> record;

  Model model;
  Layout layout;
  OptimizerConfig optimizer;
  DType dtype;                              // of activations, and of what blocks see of the parameters
  LossScaleSettings loss_scale_settings{};  // of fp16, to be set before the first step
  LossScale loss_scale{};
  DropoutDraw dropout;                               // of the last step
  std::vector<std::vector<float>> parameters, m, v;  // by group, without padding
  std::vector<std::vector<float>> gradients;         // of the last step's loss SUM, reduced; by group
  int64_t steps_run = 0, steps_done = 0;             // steps_done: without those that were skipped

 private:
  struct GroupUse {
    size_t block, slot;  // Block::groups[slot]
  };
  using UseGradients = std::vector<std::vector<float>>;  // in the order of `uses`
  std::vector<GroupUse> uses;

  size_t group_of(const GroupUse& use) const { return model.blocks[use.block].groups[use.slot]; }

  static PlainName name(PlainKind kind, size_t micro_batch, size_t index, size_t use, uint64_t part) {
    return {kind, static_cast<uint16_t>(micro_batch), static_cast<uint16_t>(index), static_cast<uint16_t>(use), part};
  }
  // 1 for the head's use of a tied group.
  size_t use_number(size_t u) const {
    size_t before = 0;
    for (size_t other = 0; other < u; ++other) before += group_of(uses[other]) == group_of(uses[u]) ? 1 : 0;
    return before;
  }
  void record_shards(PlainKind kind, const std::vector<std::vector<float>>& of_groups) const {
    for (size_t g = 0; record && g < of_groups.size(); ++g) {
      const Shards cut = shards(of_groups[g].size(), static_cast<uint64_t>(layout.dp));
      for (uint64_t part = 0; part < cut.ranks; ++part) {
        const Range range = owned(cut, part);
        record(name(kind, 0, g, 0, part), std::span(of_groups[g]).subspan(range.begin, range.size()));
      }
    }
  }

  // What the blocks see of the parameters, rounded anew at each step.
  std::vector<std::vector<std::byte>> stored_parameters;  // by group
  void store_parameters() {
    stored_parameters.clear();
    for (const std::vector<float>& group : parameters) {
      std::vector<std::byte>& stored = stored_parameters.emplace_back(group.size() * bytes_of(dtype));
      with_element(dtype, [&]<Element T>() {
        for (size_t i = 0; i < group.size(); ++i) reinterpret_cast<T*>(stored.data())[i] = from_float<T>(group[i]);
      });
    }
  }
  std::vector<float> widened(const std::vector<std::byte>& stored) const {
    std::vector<float> values(stored.size() / bytes_of(dtype));
    with_element(dtype, [&]<Element T>() {
      for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(reinterpret_cast<const T*>(stored.data())[i]);
    });
    return values;
  }

  UseGradients zeros() const {
    UseGradients all;
    for (const GroupUse& use : uses) all.emplace_back(model.groups[group_of(use)].elements);
    return all;
  }

  LossSlot micro_batch_gradients(MicroBatchShape shape, const int32_t* tokens, const int32_t* targets,
                                 UseGradients& gradients_of_uses, bool accumulate, size_t replica,
                                 size_t micro_batch) const {
    const auto width = static_cast<size_t>(shape.tokens() * model.config.hidden);
    const size_t blocks = model.blocks.size();
    using Stored = std::vector<std::byte>;
    std::vector<Stored> activations(blocks - 1, Stored(width * bytes_of(dtype)));  // [b]: the output of block b
    Stored output_gradient(width * bytes_of(dtype)), input_gradient(width * bytes_of(dtype));
    std::vector<PieceMemory> saved, between;
    uint64_t workspace_bytes = 0;
    LossSlot loss;
    std::vector<BlockViews> views(blocks);
    for (size_t b = 0; b < blocks; ++b) {
      const BlockBytes bytes = block_bytes(model, model.blocks[b], shape);
      saved.emplace_back(bytes.saved);
      between.emplace_back(bytes.between);
      workspace_bytes = std::max(workspace_bytes, bytes.workspace);
      views[b] = {.shape = shape,
                  .tokens = tokens,
                  .targets = targets,
                  .saved = saved[b].data(),
                  .between = between[b].data(),
                  .loss = &loss,
                  .dropout = &dropout,
                  .first_row = (replica * static_cast<size_t>(layout.micro_batches()) + micro_batch) *
                               static_cast<size_t>(layout.micro_batch_size),
                  .loss_scale = dtype == DType::Float16 ? &loss_scale.factor : nullptr};
      if (b > 0) views[b].input = activations[b - 1].data();
      if (b + 1 < blocks) views[b].output = activations[b].data();
    }
    for (size_t u = 0; u < uses.size(); ++u) {
      BlockViews& of = views[uses[u].block];
      of.parameters[uses[u].slot] = stored_parameters[group_of(uses[u])].data();
      of.gradients[uses[u].slot] = gradients_of_uses[u].data();
      of.accumulate[uses[u].slot] = accumulate;
    }
    const PieceMemory workspace(workspace_bytes);
    for (size_t b = 0; b < blocks; ++b) {
      views[b].workspace = workspace.data();
      block_forward(model, model.blocks[b], views[b]);
      if (record && b + 1 < blocks)
        record(name(PlainKind::Activation, micro_batch, b + 1, 0, replica), widened(activations[b]));
    }
    for (size_t b = blocks; b-- > 0;) {
      views[b].output_gradient = output_gradient.data();
      views[b].input_gradient = input_gradient.data();
      block_backward_input(model, model.blocks[b], views[b]);
      block_backward_weight(model, model.blocks[b], views[b]);
      if (record && b > 0)
        record(name(PlainKind::ActivationGradient, micro_batch, b, 0, replica), widened(input_gradient));
      std::swap(output_gradient, input_gradient);
    }
    return loss;
  }

  // Rounds the replicas' terms where they lie: nobody reads them any more.
  void sum_replicas(std::vector<UseGradients>& of_replica, UseGradients& sums, bool accumulate) const {
    for (size_t u = 0; u < uses.size(); ++u) {
      std::vector<const float*> inputs;
      for (UseGradients& replica : of_replica) {
        if (layout.reduce_dtype == DType::BFloat16)
          for (float& value : replica[u]) value = to_float(from_float<BFloat16>(value));
        inputs.push_back(replica[u].data());
      }
      kernels::sum_in_order(inputs.data(), static_cast<int64_t>(inputs.size()), sums[u].data(),
                            static_cast<int64_t>(sums[u].size()), accumulate);
    }
  }

  void sum_uses(const UseGradients& reduced) {
    std::vector<bool> used(model.groups.size());
    for (size_t u = 0; u < uses.size(); ++u) {
      const size_t group = group_of(uses[u]);
      if (used[group]) {
        kernels::add(reduced[u].data(), gradients[group].data(), static_cast<int64_t>(reduced[u].size()));
      } else {
        gradients[group] = reduced[u];
      }
      used[group] = true;
    }
  }

  using ExactSums = std::vector<std::vector<int64_t>>;  // by group
  ExactSums exact_zeros() const {
    ExactSums all;
    for (const ParameterGroup& group : model.groups) all.emplace_back(group.elements);
    return all;
  }
  kernels::ExactForm exact_form() const {
    return {
        .quantum_log2 = exact_quantum_log2(loss_scale),
        .contributions = layout.global_batch_size / layout.micro_batch_size * (model.config.tied_embeddings ? 2 : 1)};
  }

  double sum_of_squares() const {
    if (layout.reproducible) {
      kernels::SquareWords words{};
      for (const std::vector<float>& gradient : gradients)
        kernels::add_words(
            kernels::exact_squares(exact_form(), gradient.data(), static_cast<int64_t>(gradient.size())).data(), words);
      return kernels::squares_of_words(exact_form(), words);
    }
    double squares = 0;
    for (const std::vector<float>& gradient : gradients) {
      const Shards cut = shards(gradient.size(), static_cast<uint64_t>(layout.dp));
      for (uint64_t shard = 0; shard < cut.ranks; ++shard) {
        const Range range = owned(cut, shard);
        squares += kernels::sum_of_squares(gradient.data() + range.begin, static_cast<int64_t>(range.size()));
      }
    }
    return squares;
  }

  void update(float learning_rate, float gradient_scale) {
    const auto steps = static_cast<double>(steps_done);
    for (size_t g = 0; g < model.groups.size(); ++g) {
      for (const Tensor& tensor : model.groups[g].tensors) {
        const float decay = tensor.decays ? static_cast<float>(optimizer.weight_decay) : 0.0f;
        float* const p = parameters[g].data() + tensor.offset;
        const float* const gradient = gradients[g].data() + tensor.offset;
        const auto count = static_cast<int64_t>(tensor.elements);
        if (optimizer.optimizer == OptimizerKind::Sgd) {
          kernels::sgd_step({.learning_rate = learning_rate, .weight_decay = decay, .gradient_scale = gradient_scale},
                            p, gradient, count);
          continue;
        }
        kernels::adamw_step({.learning_rate = learning_rate,
                             .beta1 = optimizer.beta1,
                             .beta2 = optimizer.beta2,
                             .epsilon = static_cast<float>(optimizer.epsilon),
                             .weight_decay = decay,
                             .bias_correction1 = static_cast<float>(1 - std::pow(optimizer.beta1, steps)),
                             .bias_correction2 = static_cast<float>(1 - std::pow(optimizer.beta2, steps)),
                             .gradient_scale = gradient_scale},
                            p, gradient, m[g].data() + tensor.offset, v[g].data() + tensor.offset, count);
      }
    }
  }
};

}  // namespace shardpipe
