// Predicted against measured step times: this machine is calibrated once, then every layout of a small GPT-2 that has
// as many ranks as there are cores, or fewer, is trained for a few steps, all layouts in turn, round after round.
// Prints a line a layout, Spearman's rank correlation and the median error; fails where a rank's peak memory is not
// what the plan says.
//
//   build/bench/bench_calibration [rounds]
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "calibrate/measure.h"
#include "plan/hardware.h"
#include "program/figures.h"
#include "program/simulate.h"
#include "report/table.h"
#include "train/samples.h"
#include "train/trainer.h"

using namespace shardpipe;

namespace {

struct Case {
  RunConfig config;
  Step step;
  double predicted = 0;
  std::vector<double> measured;  // seconds of a step
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<double> ranks;
  for (const double value : values) {
    const auto below = std::ranges::count_if(values, [&](double other) { return other < value; });
    const auto equal = std::ranges::count(values, value);
    ranks.push_back(static_cast<double>(below) + static_cast<double>(equal - 1) / 2);
  }
  return ranks;
}

double spearman(const std::vector<double>& x, const std::vector<double>& y) {
  const std::vector<double> a = ranks_of(x), b = ranks_of(y);
  const double mean = static_cast<double>(x.size() - 1) / 2;
  double products = 0, of_a = 0, of_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    products += (a[i] - mean) * (b[i] - mean);
    of_a += (a[i] - mean) * (a[i] - mean);
    of_b += (b[i] - mean) * (b[i] - mean);
  }
  return products / std::sqrt(of_a * of_b);
}

ModelConfig small_gpt2() {
  ModelConfig config = model_preset("gpt2-tiny");
  config.layers = 6;
  config.hidden = 256;
  config.heads = config.kv_heads = 4;
  config.ffn = 1024;
  config.seq_len = 128;
  config.vocab_size = 512;
  return config;
}

std::vector<Layout> layouts(int64_t most_ranks) {
  std::vector<Layout> found;
  for (const auto& [pp, dp] : {std::pair<int64_t, int64_t>{1, 1}, {1, 2}, {2, 1}}) {
    if (pp * dp > most_ranks) continue;
    for (const int zero : dp == 1 ? std::vector{0} : std::vector{0, 1, 3})
      for (const char* schedule : pp == 1 ? std::vector{"1f1b"} : std::vector{"gpipe", "1f1b", "interleaved", "zb-h1"})
        for (const int64_t micro_batch : {1, 2, 4})
          for (const char* recompute : {"none", "full"}) {
            Layout layout{.pp = pp, .dp = dp, .zero = zero};
            layout.schedule = schedule;
            layout.chunks_per_rank = std::strcmp(schedule, "interleaved") == 0 ? 2 : 1;
            layout.micro_batch_size = micro_batch;
            layout.global_batch_size = 8;
            layout.reduce_every = default_reduce_every(zero);
            layout.recompute = recompute;
            found.push_back(layout);
          }
  }
  return found;
}

void train(Case& one) {
  TrainHooks hooks;
  hooks.on_step = [&](const StepResult& result) {
    if (result.step > 1) one.measured.push_back(result.seconds);  // the first makes products and touches memory
  };
  const TrainInputs inputs{.train = random_samples(one.config.seed, one.config.model.vocab_size),
                           .held_out = nullptr,
                           .held_out_samples = 0};
  const TrainResult result = run_training(one.config, one.step, inputs, hooks);
  check_invariant(result.peak_bytes == result.planned_peak_bytes, "found peaks of {} bytes, planned {}",
                  fmt::join(result.peak_bytes, ", "), fmt::join(result.planned_peak_bytes, ", "));
}

void run(int rounds) {
  const Profile profile = measure_profile();
  fmt::print("{}, {} cores, {}\n\n", profile.processor, profile.cores, profile.library);
  const Model model = make_model(small_gpt2());
  std::vector<Case> cases;
  for (const Layout& asked : layouts(static_cast<int64_t>(profile.cores))) {
    if (!problems_of(asked, model).empty()) continue;
    Case& one = cases.emplace_back();
    one.config.model = model.config;
    one.config.layout = asked;
    one.config.steps = 4;
    one.step = make_step(model, asked, 2);
    const Cluster cluster{.device = profile.device, .devices_in_node = static_cast<uint64_t>(asked.ranks())};
    const CostModel costs = costs_on(cluster, one.step.shape, one.step.training);
    one.predicted = step_figures(one.step.training, simulate(one.step.training, costs)).step_seconds;
  }
  for (int round = 0; round < rounds; ++round)
    for (Case& one : cases) train(one);

  Table table{.header = {"pp", "dp", "ZeRO", "schedule", "micro-batch", "recompute", "predicted", "measured, median",
                         "", "measured, least", ""},
              .rows = {}};
  std::vector<double> predicted, medians, leasts, errors, errors_of_least;
  for (const Case& one : cases) {
    const Layout& layout = one.config.layout;
    predicted.push_back(one.predicted);
    medians.push_back(median(one.measured));
    leasts.push_back(*std::ranges::min_element(one.measured));
    errors.push_back(std::abs(one.predicted / medians.back() - 1));
    errors_of_least.push_back(std::abs(one.predicted / leasts.back() - 1));
    table.rows.push_back(
        {fmt::format("{}", layout.pp), fmt::format("{}", layout.dp), fmt::format("{}", layout.zero), layout.schedule,
         fmt::format("{}", layout.micro_batch_size), layout.recompute, fmt::format("{:.4f} s", one.predicted),
         fmt::format("{:.4f} s", medians.back()), fmt::format("{:+.1f} %", 100 * (one.predicted / medians.back() - 1)),
         fmt::format("{:.4f} s", leasts.back()), fmt::format("{:+.1f} %", 100 * (one.predicted / leasts.back() - 1))});
  }
  fmt::print(
      "{}\n{} layouts, peak memory as planned in all. Against the median step: Spearman {:.3f}, median error {:.1f} "
      "%. Against the least: {:.3f}, {:.1f} %\n",
      to_text(table), cases.size(), spearman(predicted, medians), 100 * median(errors), spearman(predicted, leasts),
      100 * median(errors_of_least));
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 2;
  if (argc > 1) std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), rounds);
  try {
    run(std::max(rounds, 1));
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_calibration: {}\n", error.what());
    return 1;
  }
  return 0;
}
