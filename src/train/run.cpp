#include "train/run.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "data/sampler.h"
#include "data/tokens.h"
#include "program/traffic.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "report/run_folder.h"
#include "report/summary.h"
#include "report/table.h"
#include "train/memory_limit.h"
#include "train/samples.h"
#include "train/trace.h"
#include "train/trainer.h"

namespace shardpipe {
namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The first SIGINT or SIGTERM asks the run to stop after its step; the handler is then gone, so the next one ends the
// process.
// Atomic: the handler may run on any thread, rank 0's thread reads it.
std::atomic<int> stop_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may not wait for a lock");

class StopOnSignal {
 public:
  StopOnSignal() {
    stop_signal = 0;
    struct sigaction action {};
    action.sa_handler = [](int signal) { stop_signal = signal; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &old_interrupt_);
    sigaction(SIGTERM, &action, &old_terminate_);
  }
  ~StopOnSignal() {
    sigaction(SIGINT, &old_interrupt_, nullptr);
    sigaction(SIGTERM, &old_terminate_, nullptr);
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  struct sigaction old_interrupt_ {
  }, old_terminate_{};
};

// Data and output folder are looked at together, so that all mistakes are told at once.
TokenStream open_inputs(const RunConfig& config) {
  std::vector<std::string> problems;
  const auto collect = [&](const auto& look) {
    try {
      look();
    } catch (const InputError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  };
  std::optional<TokenStream> stream;
  collect([&] {
    stream.emplace(config.data.data, token_width(config.data.data_format), config.model.vocab_size,
                   config.model.seq_len + 1);
    const Splits splits = split(stream->size(), config.model.seq_len, config.data.val_fraction);
    if (splits.train.count() < 1)
      throw InputError(fmt::format(
          "--val-fraction {}: leaves no window of --seq-len {} of {} tokens to train on; allowed: less, or 0",
          config.data.val_fraction, config.model.seq_len, stream->size()));
  });
  if (!config.out.empty()) collect([&] { RunFolder::check(config.out); });
  if (const std::string folder = offload_folder(config); !folder.empty())
    collect([&] { look_at_store_directory(folder); });
  if (!problems.empty()) throw InputError(problems);
  return std::move(*stream);
}

std::map<std::string, uint64_t> by_kind(const Traffic& traffic) {
  return {{"send", traffic.send},
          {"all_gather", traffic.all_gather},
          {"reduce_scatter", traffic.reduce_scatter},
          {"all_reduce", traffic.all_reduce + traffic.tied},
          {"scalars", traffic.scalars}};
}

std::map<std::string, uint64_t> by_kind(const std::vector<WireBytes>& ranks) {
  std::map<std::string, uint64_t> sum;
  for (const WireBytes& bytes : ranks) {
    sum["send"] += bytes.send;
    sum["all_gather"] += bytes.all_gather;
    sum["reduce_scatter"] += bytes.reduce_scatter;
    sum["all_reduce"] += bytes.all_reduce;
    sum["scalars"] += bytes.scalar_all_reduce;
  }
  return sum;
}

// Of one step, summed over ranks.
std::map<std::string, uint64_t> step_wire_bytes(const Program& program, const Layout& layout) {
  std::map<std::string, uint64_t> sum;
  for (uint16_t r = 0; r < program.by_pipeline_rank.size(); ++r)
    for (const auto& [kind, bytes] :
         by_kind(traffic(program, r, static_cast<uint64_t>(layout.dp), static_cast<uint64_t>(layout.replicate))))
      sum[kind] += bytes * static_cast<uint64_t>(layout.dp);
  return sum;
}

std::vector<uint64_t> planned_bytes(const Step& step, const Layout& layout) {
  std::vector<uint64_t> bytes;
  for (size_t r = 0; r < step.training.by_pipeline_rank.size(); ++r)
    bytes.insert(
        bytes.end(), static_cast<size_t>(layout.dp),
        std::max(step.training.by_pipeline_rank[r].arena_bytes, step.evaluation.by_pipeline_rank[r].arena_bytes));
  return bytes;
}

// 3, or [3, 3, 2, 1]
nlohmann::ordered_json zero_json(const Layout& layout) {
  return layout.zero_of_ranks.empty() ? nlohmann::ordered_json(layout.zero)
                                      : nlohmann::ordered_json(layout.zero_of_ranks);
}

nlohmann::ordered_json reshard_json(const Layout& layout) {
  return layout.reshard_of_ranks.empty() ? nlohmann::ordered_json(layout.reshard_after_forward)
                                         : nlohmann::ordered_json(layout.reshard_of_ranks);
}

nlohmann::ordered_json layout_json(const StepShape& shape) {
  const Layout& layout = shape.layout;
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (size_t chunk = 0; chunk + 1 < shape.first_block.size(); ++chunk)
    stages.push_back(shape.first_block[chunk + 1] - shape.first_block[chunk]);
  return {{"pp", layout.pp},
          {"dp", layout.dp},
          {"replicate", layout.replicate},
          {"zero", zero_json(layout)},
          {"schedule", layout.schedule},
          {"micro_batch_size", layout.micro_batch_size},
          {"global_batch_size", layout.global_batch_size},
          {"micro_batches", layout.micro_batches()},
          {"reduce_every", layout.reduce_every == ReduceEvery::Micro ? "micro" : "step"},
          {"reduce_dtype", to_string(layout.reduce_dtype)},
          {"reproducible", layout.reproducible},
          {"reshard_after_forward", reshard_json(layout)},
          {"precision", to_string(layout.precision)},
          {"recompute", layout.recompute},
          {"offload", layout.offload},
          {"stages", stages}};
}

std::optional<double> loss_scale_of(const RunConfig& config, const StepScalars& scalars) {
  return config.layout.precision == DType::Float16 ? std::optional(scalars.loss_scale) : std::nullopt;
}

// What is to be known of the folder that --offload-to names, a line each: how it is used, and what is unlucky there.
// InputError where it has no room for what all ranks keep.
std::vector<std::string> look_at_store(const RunConfig& config, const Step& step) {
  const std::string folder = offload_folder(config);
  uint64_t bytes = 0;
  for (const RankProgram& rank : step.training.by_pipeline_rank) bytes += rank.store_bytes;
  bytes *= static_cast<uint64_t>(config.layout.dp);
  if (folder.empty() || bytes == 0) return {};
  const StoreDirectory found = look_at_store_directory(folder);
  if (found.free_bytes < bytes)
    throw InputError(
        fmt::format("--offload-to nvme:{}: found {} free there, allowed: {} or more, which all ranks keep "
                    "there together",
                    folder, human_bytes(found.free_bytes), human_bytes(bytes)));
  std::vector<std::string> lines{
      fmt::format("{} in files of {}, {}, {}", human_bytes(bytes), folder,
                  found.direct ? "direct I/O" : "through the page cache, since the file system has no direct I/O",
                  found.io_uring ? "several requests at once (io_uring)"
                                 : "one request after the other, since io_uring is not to be had")};
  if (found.in_memory)
    lines.push_back(
        fmt::format("warning: {} lies in memory (tmpfs), so offloading to it saves none: name a folder on a "
                    "disk",
                    folder));
  return lines;
}

}  // namespace

RunEnd run(const RunConfig& config, const std::string& config_text) {
  const TokenStream stream = open_inputs(config);
  const Splits splits = split(stream.size(), config.model.seq_len, config.data.val_fraction);
  const Model model = make_model(config.model);
  const Step step = make_step(model, config.layout, optimizer_states_per_element(config.optimizer.optimizer));
  require_memory_limit(config, step);
  const std::vector<std::string> of_store = look_at_store(config, step);
  const std::vector<uint64_t> planned = planned_bytes(step, config.layout);
  const uint64_t planned_most = *std::max_element(planned.begin(), planned.end());

  std::optional<RunFolder> folder;
  if (!config.out.empty()) folder.emplace(config.out, config_text);
  for (const std::string& warning :
       warnings_of(config, splits.train.end_token - splits.train.first_token, held_bytes(step)))
    fmt::print(stderr, "shardpipe: warning: {}\n", warning);
  for (const std::string& line : of_store) fmt::print(stderr, "shardpipe: {}\n", line);

  const std::map<std::string, uint64_t> wire_bytes = step_wire_bytes(step.training, config.layout);
  const StopOnSignal signals;
  Progress progress(config.steps, stderr_sink());
  const double begin = now_seconds();
  std::optional<double> val_loss;
  double tokens = 0;
  const TrainHooks hooks{
      .on_step =
          [&](const StepResult& result) {
            if (result.val_loss) val_loss = result.val_loss;
            tokens += result.scalars.tokens;
            const double rate = result.scalars.tokens / result.seconds;
            if (folder)
              folder->append_metrics(to_json_line({.step = result.step,
                                                   .loss = result.scalars.loss,
                                                   .grad_norm = result.scalars.gradient_norm,
                                                   .lr = result.learning_rate,
                                                   .tokens = static_cast<int64_t>(result.scalars.tokens),
                                                   .seconds = result.seconds,
                                                   .tokens_per_second = rate,
                                                   .mfu = std::nullopt,
                                                   .peak_bytes = planned,
                                                   .wire_bytes = wire_bytes,
                                                   .loss_scale = loss_scale_of(config, result.scalars),
                                                   .skipped = result.scalars.skipped,
                                                   .val_loss = result.val_loss}));
            progress.update({.step = result.step,
                             .loss = result.scalars.loss,
                             .val_loss = val_loss,
                             .tokens_per_second = rate,
                             .peak_bytes = planned_most,
                             .seconds = now_seconds() - begin});
          },
      .stop_requested = [] { return stop_signal != 0; },
      .observer = nullptr};
  const TrainResult result = run_training(config, step,
                                          {.train = shuffled_windows(stream, splits.train, config.seed),
                                           .held_out = windows_in_order(stream, splits.held_out),
                                           .held_out_samples = splits.held_out.count()},
                                          hooks);
  progress.finish();
  const double seconds = now_seconds() - begin;
  check_invariant(result.peak_bytes == result.planned_peak_bytes, "ranks used other bytes than planned: {} against {}",
                  fmt::join(result.peak_bytes, " "), fmt::join(result.planned_peak_bytes, " "));

  if (folder) {
    if (config.trace) folder->write_file_atomically("trace.json", trace_of(step, result.timelines));
    folder->write_file_atomically("summary.json", to_json({.steps = result.steps,
                                                           .tokens = static_cast<int64_t>(tokens),
                                                           .final_loss = result.last.scalars.loss,
                                                           .val_loss = result.val_loss,
                                                           .params_digest = result.params_digest,
                                                           .skipped_steps = result.skipped_steps,
                                                           .peak_bytes = result.peak_bytes,
                                                           .planned_peak_bytes = result.planned_peak_bytes,
                                                           .wire_bytes = by_kind(result.wire_bytes),
                                                           .store_bytes = result.store_bytes,
                                                           .fetched_bytes = result.fetched_bytes,
                                                           .offloaded_bytes = result.offloaded_bytes,
                                                           .cpu_seconds = cpu_seconds(),
                                                           .seconds = seconds,
                                                           .interrupted = result.stopped,
                                                           .layout = layout_json(step.shape)}));
  }
  fmt::print(
      "{} steps, {} tokens in {}{}\n", result.steps, human_count(tokens), human_seconds(seconds),
      result.stopped ? fmt::format("; stopped on request, {} steps before the end", config.steps - result.steps) : "");
  if (result.skipped_steps > 0)
    fmt::print("{} steps skipped, whose gradients overflowed; loss scale {}\n", result.skipped_steps,
               result.last.scalars.loss_scale);
  fmt::print("loss {:.4f} nats a token\n", result.last.scalars.loss);
  if (result.val_loss)
    fmt::print("held-out loss {:.4f}; unigram entropy of that text {:.4f}\n", *result.val_loss,
               unigram_entropy(stream, splits.held_out.first_token, splits.held_out.end_token));
  fmt::print("params_digest {}\n", result.params_digest);
  if (folder) fmt::print("written to {}\n", folder->path().string());
  return result.stopped ? RunEnd::Interrupted : RunEnd::Finished;
}

}  // namespace shardpipe
