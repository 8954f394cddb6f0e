// Published step times against this program's: fits what each software reaches of its device on every third row of each
// table, prints that (tests/plan/published/fitted.csv has it, to two digits), and every row with its error by the
// committed figures.
//   build/bench/bench_published [--fit | --rendezvous]
// --rendezvous: sends that wait for their receives, as the executor's do.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "plan/published_times.h"
#include "test_paths.h"

using namespace shardpipe;

namespace {

const std::string folder = std::string(TEST_DATA_DIR) + "/plan/published";

struct Row {
  PublishedTime time;
  std::unique_ptr<PublishedStep> step{};
  double seconds(const Reached& reached, const ChannelModel& channels = PublishedStep::buffered) {
    if (!step) step = std::make_unique<PublishedStep>(time);
    return step->seconds(reached, folder, channels);
  }
};

using Vector = std::array<double, 4>;  // a number for each parameter
constexpr std::array<double Reached::*, 4> parameters{&Reached::products, &Reached::memory, &Reached::score_bytes,
                                                      &Reached::network};
constexpr std::array<const char*, 4> names{"products", "memory", "score_bytes", "network"};
constexpr Vector most{1, 0.95, 100, 0.95};

std::vector<double> log_errors(std::vector<Row*>& rows, const Reached& reached) {
  std::vector<double> errors;
  for (Row* row : rows) errors.push_back(std::log(row->seconds(reached) / row->time.seconds));
  return errors;
}
double squares(const std::vector<double>& errors) {
  double sum = 0;
  for (const double error : errors) sum += error * error;
  return sum;
}

// Solves a x = b by elimination; a is positive definite.
Vector solved(std::array<Vector, 4> a, Vector b) {
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = i + 1; j < 4; ++j) {
      const double factor = a[j][i] / a[i][i];
      for (size_t k = i; k < 4; ++k) a[j][k] -= factor * a[i][k];
      b[j] -= factor * b[i];
    }
  for (size_t i = 4; i-- > 0;) {
    for (size_t k = i + 1; k < 4; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

// Least squares of the logarithms, by Levenberg and Marquardt's damped steps. A parameter that is not free, or that no
// row depends on, stays where it was.
Reached fitted(std::vector<Row*>& rows, Reached reached) {
  std::vector<double> errors = log_errors(rows, reached);
  double damping = 0.01;
  for (int step = 0; step < 8; ++step) {
    std::array<std::vector<double>, 4> slopes;
    for (size_t k = 0; k < 4; ++k) {
      if (!reached.is_free.contains(names[k])) {
        slopes[k].assign(rows.size(), 0);
        continue;
      }
      Reached other = reached;
      other.*parameters[k] *= 0.96;
      slopes[k] = log_errors(rows, other);
      for (size_t i = 0; i < rows.size(); ++i) slopes[k][i] = (slopes[k][i] - errors[i]) / std::log(0.96);
    }
    std::array<Vector, 4> normal{};
    Vector right{};
    for (size_t k = 0; k < 4; ++k) {
      normal[k][k] = damping;
      for (size_t i = 0; i < rows.size(); ++i) {
        right[k] -= slopes[k][i] * errors[i];
        for (size_t l = 0; l < 4; ++l) normal[k][l] += slopes[k][i] * slopes[l][i];
      }
    }
    const Vector change = solved(normal, right);
    Reached other = reached;
    for (size_t k = 0; k < 4; ++k)
      other.*parameters[k] = std::min(most[k], reached.*parameters[k] * std::exp(std::clamp(change[k], -0.4, 0.4)));
    std::vector<double> now = log_errors(rows, other);
    if (squares(now) < squares(errors)) {
      reached = other, errors = std::move(now), damping /= 2;
    } else {
      damping *= 10;
    }
  }
  return reached;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Row> rows;
  for (PublishedTime& time : published_times(folder)) rows.push_back({std::move(time)});
  const std::vector<Reached> all = read_reached(folder);
  if (argc > 1 && std::strcmp(argv[1], "--fit") == 0)
    for (const Reached& reached : all) {
      std::vector<Row*> of_fit;
      for (Row& row : rows)
        if (row.time.fitted && row.time.software == reached.software && row.time.device == reached.device)
          of_fit.push_back(&row);
      if (of_fit.empty()) continue;
      const Reached found = fitted(of_fit, reached);
      fmt::print("{},{},{:.2f},{:.2f},{:.1f},{:.3f} on {} rows, {:.1f} % root mean square\n", found.software,
                 found.device, found.products, found.memory, found.score_bytes, found.network, of_fit.size(),
                 100 * std::sqrt(squares(log_errors(of_fit, found)) / static_cast<double>(of_fit.size())));
      std::fflush(stdout);
      for (Row* row : of_fit) row->step.reset();
    }
  const bool rendezvous = argc > 1 && std::strcmp(argv[1], "--rendezvous") == 0;
  const ChannelModel channels = rendezvous ? executor_channels : PublishedStep::buffered;
  std::vector<double> errors;
  fmt::print("| table | row | published | predicted | error | |\n|---|---|--:|--:|--:|---|\n");
  for (Row& row : rows) {
    const PublishedTime& time = row.time;
    if (!time.left_out.empty()) {
      fmt::print("| {} | {} | | | | left out: {} |\n", time.table, time.name, time.left_out);
      continue;
    }
    const auto reached = std::ranges::find_if(
        all, [&](const Reached& r) { return r.software == time.software && r.device == time.device; });
    const double seconds = row.seconds(*reached, channels), error = seconds / time.seconds - 1;
    row.step.reset();
    fmt::print("| {} | {} | {:.4g} s | {:.4g} s | {:+.1f} % | {} |\n", time.table, time.name, time.seconds, seconds,
               100 * error, time.fitted ? "fitted" : "");
    if (!time.fitted) errors.push_back(std::abs(error));
  }
  std::ranges::sort(errors);
  fmt::print("\nOf the {} rows that are predicted: median {:.1f} %, worst {:.1f} %, {} over 20 %.\n", errors.size(),
             100 * errors[errors.size() / 2], 100 * errors.back(),
             std::ranges::count_if(errors, [](double e) { return e > 0.2; }));
}
