// What a layout costs: CPU seconds a token of pp 2 × dp 2 × ZeRO-3 over those of one plain rank, with the same model,
// global batch and micro-batch. Both are run in turn in one process, so that a processor that gets slower or busier
// changes both; CPU seconds are those of all threads. Every figure is taken from step 2 on: the first touch of memory
// and the making of matrix products are in step 1.
//
//   build/bench/bench_layouts --model gpt2-10m --micro-batch-size 2
//
// With --reproducible instead: what exact sums of gradients cost the same layouts, in time, memory and on the wire.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "machine_limits.h"
#include "program/memory.h"
#include "program/text.h"
#include "program/traffic.h"
#include "report/table.h"
#include "train/samples.h"
#include "train/trainer.h"

using namespace shardpipe;

namespace {

constexpr double limit = 1.15;  // of the CPU seconds a token

struct Options {
  std::string model = "gpt2-10m";
  int64_t micro_batch_size = 2, global_batch_size = 8, steps = 4, pairs = 5;
  bool profile = false, reproducible = false;
};

struct Cost {
  double cpu_seconds = 0, wall_seconds = 0;  // of one token
  std::string digest;
};

struct Now {
  double cpu_seconds, wall_seconds;
};
Now now() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return {seconds(usage.ru_utime) + seconds(usage.ru_stime),
          std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count()};
}

// CPU seconds of every kind of action, summed over the ranks: what a lane's thread used since its last action ended.
class Profile {
 public:
  Observer observer() {
    return [this](int64_t step, const Action& action, const RankProgram&, std::byte*) {
      thread_local double last = 0;
      const double time = bench::thread_seconds();
      if (step > 1) {
        const std::scoped_lock lock(mutex_);
        seconds_[static_cast<size_t>(action.kind)] += time - last;
      }
      last = time;
    };
  }
  double seconds(Kind kind) const { return seconds_[static_cast<size_t>(kind)]; }

 private:
  std::mutex mutex_;
  std::array<double, static_cast<size_t>(Kind::OptimizerStep) + 1> seconds_{};
};

// A layout, compiled once.
struct Case {
  std::string name;
  RunConfig config;
  Model model;
  Step step;

  Case(const Options& options, std::string called, int64_t pp, int64_t dp, int zero, ReduceEvery reduce_every,
       bool reproducible = false)
      : name(std::move(called)) {
    config.model = model_preset(options.model);
    config.layout = {.pp = pp,
                     .dp = dp,
                     .zero = zero,
                     .micro_batch_size = options.micro_batch_size,
                     .global_batch_size = options.global_batch_size,
                     .reduce_every = reduce_every,
                     .stages = {}};
    config.layout.reproducible = reproducible;
    config.steps = options.steps + 1;
    model = make_model(config.model);
    config.layout.stages = balanced_stages(model, pp, {options.micro_batch_size, config.model.seq_len});
    std::vector<std::string> problems = problems_of(config.layout, model);
    if (!problems.empty()) throw InputError(fmt::format("{}: {}", name, fmt::join(problems, "; ")));
    step = make_step(model, config.layout, optimizer_states_per_element(config.optimizer.optimizer));
  }
  Case(const Case&) = delete;

  double flops_per_token() const {
    const MicroBatchShape shape{config.layout.micro_batch_size, config.model.seq_len};
    double flops = 0;
    for (const Block& block : model.blocks)
      flops += 3 * forward_flops(model, block, shape);  // backward is two forwards
    return flops / static_cast<double>(shape.tokens());
  }

  Cost run(Profile* profile = nullptr) const {
    Now begin{};
    Now end{};
    TrainHooks hooks;
    hooks.on_step = [&](const StepResult& result) { (result.step == 1 ? begin : end) = now(); };
    if (profile != nullptr) hooks.observer = [&](int) { return profile->observer(); };
    const TrainInputs inputs{
        .train = random_samples(config.seed, config.model.vocab_size), .held_out = nullptr, .held_out_samples = 0};
    const TrainResult result = run_training(config, step, inputs, hooks);
    const auto tokens =
        static_cast<double>((config.steps - 1) * config.layout.global_batch_size * config.model.seq_len);
    return {(end.cpu_seconds - begin.cpu_seconds) / tokens, (end.wall_seconds - begin.wall_seconds) / tokens,
            result.params_digest};
  }
};

std::string microseconds(double seconds) { return fmt::format("{:.1f}", 1e6 * seconds); }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// One plain rank and `other` in turn.
void compare(const Case& plain, const Case& other, int64_t pairs) {
  fmt::print("\n{} against {}\n\n", other.name, plain.name);
  Table table{.header = {"pair", "CPU µs a token of the first", "of the second", "CPU ratio", "limit", "wall ratio"},
              .rows = {}};
  std::vector<double> cpu;
  std::vector<double> wall;
  std::vector<double> plain_seconds;
  const double peak = bench::peak_flops_per_second();
  Cost a;
  Cost b;
  for (int64_t pair = 1; pair <= pairs; ++pair) {
    a = plain.run();
    b = other.run();
    plain_seconds.push_back(a.cpu_seconds);
    cpu.push_back(b.cpu_seconds / a.cpu_seconds);
    wall.push_back(b.wall_seconds / a.wall_seconds);
    table.rows.push_back({fmt::format("{}", pair), microseconds(a.cpu_seconds), microseconds(b.cpu_seconds),
                          fmt::format("{:.3f}", cpu.back()), fmt::format("{:.2f}", limit),
                          fmt::format("{:.3f}", wall.back())});
  }
  const auto row = [&](const char* name, auto&& of) {
    table.rows.push_back(
        {name, "", "", fmt::format("{:.3f}", of(cpu)), fmt::format("{:.2f}", limit), fmt::format("{:.3f}", of(wall))});
  };
  row("min", [](const auto& values) { return *std::ranges::min_element(values); });
  row("median", [](const auto& values) { return median(values); });
  row("max", [](const auto& values) { return *std::ranges::max_element(values); });
  fmt::print("{}digests {} and {}\n", to_text(table), a.digest, b.digest);
  const double rate = plain.flops_per_token() / *std::ranges::min_element(plain_seconds);
  fmt::print("the first at best: {:.1f} GFLOP/s, {:.0f} % of one thread's measured FMA peak of {:.1f}\n", 1e-9 * rate,
             100 * rate / peak, 1e-9 * peak);
}

// Of all ranks: what a step's program holds and sends.
void print_bytes(const std::vector<const Case*>& cases) {
  Table table{.header = {"all ranks together", "arena", "gradients", "in reduction", "sent of gradients a step"},
              .rows = {}};
  for (const Case* each : cases) {
    const auto dp = static_cast<uint64_t>(each->config.layout.dp);
    uint64_t arena = 0;
    uint64_t gradients = 0;
    uint64_t reducing = 0;
    uint64_t sent = 0;
    for (uint16_t r = 0; r < each->step.training.by_pipeline_rank.size(); ++r) {
      const RankMemory held = memory(each->step.training.by_pipeline_rank[r]);
      const Traffic wire = traffic(each->step.training, r, dp);
      arena += dp * held.arena;
      gradients += dp * held.gradients;
      reducing += dp * held.micro_batch_gradients;
      sent += dp * (wire.reduce_scatter + wire.all_reduce + wire.tied);
    }
    table.rows.push_back(
        {each->name, human_bytes(arena), human_bytes(gradients), human_bytes(reducing), human_bytes(sent)});
  }
  fmt::print("\n{}", to_text(table));
}

// Each layout in turn with itself in exact sums, whose digests must be equal although their cadences differ.
void compare_reproducible(const Options& options) {
  const auto named = [](ReduceEvery every, const char* rest) {
    return fmt::format("pp 2 dp 2 zero 3, reduce every {}{}", every == ReduceEvery::Micro ? "micro-batch" : "step",
                       rest);
  };
  std::string digest;
  for (const ReduceEvery every : {ReduceEvery::Micro, ReduceEvery::Step}) {
    const Case floats(options, named(every, ""), 2, 2, 3, every);
    const Case exact(options, named(every, ", reproducible"), 2, 2, 3, every, true);
    compare(floats, exact, options.pairs);
    print_bytes({&floats, &exact});
    const std::string found = exact.run().digest;
    if (!digest.empty() && digest != found) throw InvariantError("two reproducible layouts have other bits");
    digest = found;
  }
}

// Same data-parallel size and cadence, no pipeline, no shards: the digest must be the same.
void compare_digests(const Case& other, const Case& same) {
  const std::string digest = other.run().digest;
  const std::string expected = same.run().digest;
  fmt::print("{}  {}\n{}  {}: {}\n", digest, other.name, expected, same.name,
             digest == expected ? "equal" : "DIFFERENT");
  if (digest != expected) throw InvariantError("two layouts of one data-parallel size have other bits");
}

void print_profile(const std::vector<const Case*>& cases) {
  Table table{.header = {"CPU µs a token in"}, .rows = {}};
  std::vector<Profile> profiles(cases.size());
  std::vector<double> totals;
  std::vector<double> counted(cases.size(), 0);
  for (size_t i = 0; i < cases.size(); ++i) {
    table.header.push_back(cases[i]->name);
    totals.push_back(cases[i]->run(&profiles[i]).cpu_seconds);
  }
  for (int kind = 0; kind <= static_cast<int>(Kind::OptimizerStep); ++kind) {
    std::vector<std::string> row{to_string(static_cast<Kind>(kind))};
    for (size_t i = 0; i < cases.size(); ++i) {
      const RunConfig& config = cases[i]->config;
      const double seconds =
          profiles[i].seconds(static_cast<Kind>(kind)) /
          static_cast<double>((config.steps - 1) * config.layout.global_batch_size * config.model.seq_len);
      row.push_back(microseconds(seconds));
      counted[i] += seconds;
    }
    table.rows.push_back(row);
  }
  std::vector<std::string> rest{"all else"};
  std::vector<std::string> all{"all"};
  for (size_t i = 0; i < cases.size(); ++i) {
    rest.push_back(microseconds(totals[i] - counted[i]));
    all.push_back(microseconds(totals[i]));
  }
  table.rows.push_back(rest);
  table.rows.push_back(all);
  fmt::print("\n{}", to_text(table));
}

void run(const Options& options) {
  if (options.reproducible) return compare_reproducible(options);
  const Case plain(options, "pp 1 dp 1 zero 0", 1, 1, 0, ReduceEvery::Step);
  const Case micro(options, "pp 2 dp 2 zero 3, reduce every micro-batch", 2, 2, 3, ReduceEvery::Micro);
  const Case step(options, "pp 2 dp 2 zero 3, reduce every step", 2, 2, 3, ReduceEvery::Step);
  fmt::print("{} ({}), {}, sequence {}, micro-batch {}, global batch {}, {} steps a run\n", bench::processor_name(),
             bench::vector_instructions(), options.model, plain.config.model.seq_len, options.micro_batch_size,
             options.global_batch_size, options.steps);
  if (options.profile) return print_profile({&plain, &micro, &step});
  compare(plain, micro, options.pairs);
  compare(plain, step, options.pairs);
  fmt::print("\n");
  compare_digests(micro, Case(options, "pp 1 dp 2 zero 0, reduce every micro-batch", 1, 2, 0, ReduceEvery::Micro));
  compare_digests(step, Case(options, "pp 1 dp 2 zero 0, reduce every step", 1, 2, 0, ReduceEvery::Step));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("CPU seconds a token of pp 2 × dp 2 × ZeRO-3 over those of one plain rank");
  app.add_option("--model", options.model, "a preset")->capture_default_str();
  app.add_option("--micro-batch-size", options.micro_batch_size)->capture_default_str();
  app.add_option("--global-batch-size", options.global_batch_size)->capture_default_str();
  app.add_option("--steps", options.steps, "measured in a run")->capture_default_str();
  app.add_option("--pairs", options.pairs)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_flag("--profile", options.profile, "one run of each: CPU seconds by kind of action");
  app.add_flag("--reproducible", options.reproducible, "with exact sums of gradients against without");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_layouts: {}\n", error.what());
    return 1;
  }
  return 0;
}
