#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/exact_sum.h"
#include "train/digest.h"

namespace shardpipe {
namespace {

// What a rank leaves for the main thread, which reads it after all ranks have ended.
struct RankRecord {
  std::map<std::string, Hash> hashes;
  std::map<std::string, std::vector<float>> parameters;
  uint64_t peak_bytes = 0, store_bytes = 0, fetched_bytes = 0, offloaded_bytes = 0;
  WireBytes wire_bytes;
  Timeline timeline;
};

class RankLoop {
 public:
  RankLoop(const RunConfig& config, const Step& step, const TrainInputs& inputs, const TrainHooks& hooks,
           LocalWorld& world, int world_rank)
      : config_(config),
        inputs_(inputs),
        hooks_(hooks),
        rank_(step, world, world_rank, hooks.observer ? hooks.observer(world_rank) : nullptr, offload_folder(config)),
        contributions_(step.shape.contributions()),
        unread_(static_cast<size_t>(config.model.seq_len)) {}

  // `result` is rank 0's alone.
  void run(RankRecord& record, TrainResult* result) {
    const OptimizerConfig& optimizer = config_.optimizer;
    rank_.settings = {.adamw = optimizer.optimizer == OptimizerKind::AdamW,
                      .beta1 = optimizer.beta1,
                      .beta2 = optimizer.beta2,
                      .epsilon = optimizer.epsilon,
                      .weight_decay = optimizer.weight_decay,
                      .gradient_clip = optimizer.grad_clip,
                      .loss_scale = config_.loss_scale};
    if (hooks_.initial)
      rank_.initialise(hooks_.initial);
    else
      rank_.initialise(config_.seed);
    for (int64_t k = 1; k <= config_.steps; ++k) {
      if (result != nullptr && hooks_.stop_requested) rank_.settings.stop_requested = hooks_.stop_requested();
      if (step(k, result)) break;
    }
    record.timeline = rank_.last_timeline();
    keep_parameters(record);
    record.peak_bytes = rank_.highest_byte();
    record.wire_bytes = rank_.wire_bytes();
    if (const Store* store = rank_.store(); store != nullptr) {
      record.store_bytes = store->size();
      record.fetched_bytes = store->bytes_read();
      record.offloaded_bytes = store->bytes_written();
    }
  }

 private:
  // True when all ranks are to stop.
  bool step(int64_t k, TrainResult* result) {
    const double begin = now_seconds();
    fill(inputs_.train, sample_number(config_.layout, k + hooks_.first_sample_step, rank_.replica(), 0, 0), INT64_MAX);
    rank_.settings.learning_rate = learning_rate(config_.optimizer, updates_ + 1, config_.steps);
    rank_.settings.step = k;
    const int64_t of_data = k + hooks_.first_sample_step;
    rank_.settings.dropout = {.seed = config_.seed,
                              .step = static_cast<uint64_t>(of_data),
                              .first_sample = static_cast<uint64_t>(sample_number(config_.layout, of_data, 0, 0, 0))};
    rank_.settings.update = updates_ + 1;
    const StepScalars scalars = rank_.train_step();
    stop_if_diverged(k, scalars);
    if (!scalars.skipped) ++updates_;
    StepResult outcome{.step = k,
                       .scalars = scalars,
                       .learning_rate = rank_.settings.learning_rate,
                       .seconds = now_seconds() - begin,
                       .val_loss = std::nullopt};
    const bool last = k == config_.steps || scalars.stop;
    if (inputs_.held_out_samples > 0 && (last || (config_.eval_every > 0 && k % config_.eval_every == 0)))
      outcome.val_loss = evaluate();
    if (result != nullptr) {
      result->steps = k;
      result->skipped_steps += scalars.skipped ? 1 : 0;
      result->last = outcome;
      if (outcome.val_loss) result->val_loss = outcome.val_loss;
      result->stopped = scalars.stop && k < config_.steps;
      if (hooks_.on_step) hooks_.on_step(outcome);
    }
    return scalars.stop;
  }

  // An overflow of scaled gradients alone is no divergence: the step is skipped, the scale falls.
  void stop_if_diverged(int64_t k, const StepScalars& scalars) {
    const bool scaled = config_.layout.precision == DType::Float16;
    const bool at_the_end = scaled && scalars.skipped && scalars.loss_scale <= config_.loss_scale.minimum;
    overflows_at_the_end_ = at_the_end ? overflows_at_the_end_ + 1 : 0;
    const bool diverged = !std::isfinite(scalars.loss) || (!scaled && scalars.skipped) || overflows_at_the_end_ > 1;
    if (!diverged || config_.on_nan == OnNan::Continue) return;
    std::string where;
    if (const std::optional<NonFinite> first = rank_.find_non_finite())
      where = fmt::format("; the first value that is not finite is in {} {}, micro-batch {}, on rank {}",
                          first->backward ? "what the backward gives of" : "the output of",
                          rank_.model().blocks[first->block].name, first->micro_batch, first->world_rank);
    else if (scalars.out_of_range)
      where = fmt::format("; what one micro-batch gives to a gradient was outside ±2^{}, the range of --reproducible",
                          kernels::exact_range_log2({.contributions = contributions_}));
    throw std::runtime_error(fmt::format(
        "step {}: loss {}, gradient norm {}{}{}. What helps: {}a lower --lr, a longer --warmup-steps, --grad-clip 1; "
        "--on-nan continue skips such steps",
        k, std::isnan(scalars.loss) ? "nan" : fmt::format("{:.6g}", scalars.loss),
        scalars.skipped ? "not finite" : fmt::format("{:.6g}", scalars.gradient_norm),
        overflows_at_the_end_ > 1 ? fmt::format(" at the smallest loss scale {}", scalars.loss_scale) : "", where,
        scaled ? "--precision bf16, which has the range of fp32 and is more stable; " : ""));
  }

  // Mean over all held-out targets that are read. The last batch may be partly empty: those sequences have no targets.
  double evaluate() {
    const int64_t samples = std::min(inputs_.held_out_samples, config_.eval_sequences);
    double loss = 0, tokens = 0;
    for (int64_t batch = 0; batch * config_.layout.global_batch_size < samples; ++batch) {
      fill(inputs_.held_out, sample_number(config_.layout, batch + 1, rank_.replica(), 0, 0), samples);
      const StepScalars& scalars = rank_.evaluate();
      loss += scalars.loss * scalars.tokens;
      tokens += scalars.tokens;
    }
    return loss / tokens;
  }

  // This replica's sequences from `first` on; those from `end` on are empty.
  void fill(const SampleSource& source, int64_t first, int64_t end) {
    const int64_t sequence = config_.model.seq_len;
    for (int64_t m = 0; m < config_.layout.micro_batches(); ++m) {
      const std::span<int32_t> tokens = rank_.tokens(static_cast<uint16_t>(m)),
                               targets = rank_.targets(static_cast<uint16_t>(m));
      if (tokens.empty() && targets.empty()) return;
      for (int64_t row = 0; row < config_.layout.micro_batch_size; ++row) {
        const int64_t sample = first + m * config_.layout.micro_batch_size + row;
        const auto row_of = [&](std::span<int32_t> matrix) {
          return matrix.empty() ? std::span(unread_)
                                : matrix.subspan(static_cast<size_t>(row * sequence), unread_.size());
        };
        const std::span<int32_t> input = row_of(tokens), target = row_of(targets);
        if (sample < end) {
          source(sample, input, target);
        } else if (!targets.empty()) {
          std::ranges::fill(target, kernels::ignored_target);
        }
        if (sample >= end && !tokens.empty()) std::ranges::fill(input, 0);
      }
    }
  }

  void keep_parameters(RankRecord& record) {
    rank_.visit_parameters([&](const Tensor& tensor, std::span<const float> values) {
      record.hashes[tensor.name] = hash_tensor(values);
      if (hooks_.keep_parameters) record.parameters[tensor.name].assign(values.begin(), values.end());
    });
  }

  const RunConfig& config_;
  const TrainInputs& inputs_;
  const TrainHooks& hooks_;
  Rank rank_;
  const int64_t contributions_;       // to one element of a gradient
  int64_t updates_ = 0;               // steps that were not skipped
  int64_t overflows_at_the_end_ = 0;  // steps in a row whose gradients overflowed at the smallest loss scale
  std::vector<int32_t> unread_;  // where a stage that needs the tokens alone puts the targets, and the other way round
};

// Replicas and tied copies have done the same updates: any difference is a fault of ours.
std::map<std::string, Hash> agreed_hashes(const std::vector<RankRecord>& records) {
  std::map<std::string, Hash> agreed;
  for (size_t rank = 0; rank < records.size(); ++rank)
    for (const auto& [tensor, hash] : records[rank].hashes) {
      const auto [known, first] = agreed.emplace(tensor, hash);
      check_invariant(first || known->second == hash, "rank {} ended with other values of {} than an earlier rank",
                      rank, tensor);
    }
  return agreed;
}

}  // namespace

TrainResult run_training(const RunConfig& config, const Step& step, const TrainInputs& inputs,
                         const TrainHooks& hooks) {
  const auto ranks = static_cast<size_t>(config.layout.ranks());
  LocalWorld world(static_cast<int>(ranks));
  std::vector<RankRecord> records(ranks);
  TrainResult result;
  run_ranks(world, [&](int r) {
    RankLoop(config, step, inputs, hooks, world, r).run(records[static_cast<size_t>(r)], r == 0 ? &result : nullptr);
  });
  result.params_digest = params_digest(*step.shape.model, agreed_hashes(records));
  for (size_t r = 0; r < ranks; ++r) {
    RankRecord& record = records[r];
    const size_t pipeline_rank = r / static_cast<size_t>(config.layout.dp);
    result.planned_peak_bytes.push_back(std::max(step.training.by_pipeline_rank[pipeline_rank].arena_bytes,
                                                 step.evaluation.by_pipeline_rank[pipeline_rank].arena_bytes));
    result.peak_bytes.push_back(record.peak_bytes);
    result.wire_bytes.push_back(record.wire_bytes);
    result.store_bytes.push_back(record.store_bytes);
    result.fetched_bytes += record.fetched_bytes;
    result.offloaded_bytes += record.offloaded_bytes;
    result.timelines.push_back(std::move(record.timeline));
    result.parameters.merge(record.parameters);
  }
  return result;
}

}  // namespace shardpipe
