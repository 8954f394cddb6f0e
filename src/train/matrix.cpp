#include "train/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "report/table.h"
#include "schedules/schedule.h"
#include "train/memory_limit.h"
#include "train/samples.h"
#include "train/trainer.h"

namespace shardpipe {

MatrixAxes::MatrixAxes() : schedules(schedule_names()) {}

std::vector<Layout> matrix_layouts(const Layout& base, const MatrixAxes& axes) {
  std::vector<Layout> layouts;
  for (const std::string& schedule : axes.schedules)
    for (const int zero : axes.zero)
      for (const DType precision : axes.precisions)
        for (const std::string& recompute : axes.recomputes)
          for (const std::string& offload : axes.offloads) {
            Layout& layout = layouts.emplace_back(base);
            if (schedule != base.schedule) {
              layout.own_schedule.reset();
              layout.chunks_per_rank = 0;  // as the schedule usually has
              layout.stages.clear();
            }
            layout.schedule = schedule;
            layout.zero = zero;
            layout.zero_of_ranks.clear();
            layout.precision = precision;
            layout.recompute = recompute;
            layout.offload = offload;
            if (axes.reduce_every_follows_zero) layout.reduce_every = default_reduce_every(zero);
          }
  return layouts;
}

MatrixCell matrix_cell(const RunConfig& base, const Layout& layout, bool train) {
  MatrixCell cell{.layout = layout, .refused = "", .digest = ""};
  RunConfig config = base;
  config.layout = layout;
  if (layout.offload == "none") config.offload_to = "host";  // a cell without offload leaves a folder alone
  try {
    if (const std::vector<std::string> problems = problems_of(config); !problems.empty()) throw InputError(problems);
    const Model model = make_model(config.model);
    const Step step = make_step(model, layout, optimizer_states_per_element(config.optimizer.optimizer));
    if (const uint64_t needed = largest_arena(step), limit = *bytes_in(config.memory_limit); needed > limit)
      throw InputError(fmt::format("--memory-limit {}: found {}, allowed: {}", config.memory_limit, human_bytes(needed),
                                   human_bytes(limit)));
    if (!train) return cell;
    const SampleSource samples = random_samples(config.seed, config.model.vocab_size);
    cell.digest = run_training(config, step, {.train = samples, .held_out = nullptr}).params_digest;
  } catch (const std::exception& error) {
    cell.refused = error.what();
  }
  return cell;
}

std::string bits_of_cell(const Layout& layout) {
  return fmt::format("{}, reduced every {}", to_string(layout.precision),
                     layout.reduce_every == ReduceEvery::Micro ? "micro-batch" : "step");
}

namespace {

std::vector<std::string> values_of(const Layout& layout) {
  return {"--schedule " + layout.schedule, fmt::format("--zero {}", layout.zero),
          fmt::format("--precision {}", to_string(layout.precision)), "--recompute " + layout.recompute,
          "--offload " + layout.offload};
}

size_t difference(const Layout& a, const Layout& b) {
  const std::vector<std::string> of_a = values_of(a), of_b = values_of(b);
  size_t count = 0;
  for (size_t i = 0; i < of_a.size(); ++i) count += of_a[i] == of_b[i] ? 0 : 1;
  return count;
}

void print_refused(const std::vector<MatrixCell>& cells) {
  std::map<std::string, std::vector<const MatrixCell*>> by_reason;
  for (const MatrixCell& cell : cells)
    if (!cell.refused.empty()) by_reason[cell.refused].push_back(&cell);
  for (const auto& [reason, refused] : by_reason) {
    const MatrixCell& first = *refused.front();
    const MatrixCell* nearest = nearest_that_runs(cells, first);
    fmt::print("{} refused: {}\n  such as {}\n  {}\n", refused.size(), reason, fmt::join(values_of(first.layout), " "),
               nearest == nullptr ? "no cell runs"
                                  : "nearest that runs: " + flags_of_difference(first.layout, nearest->layout));
  }
}

// Digests by what decides them; false where one has two.
bool print_digests(const std::vector<MatrixCell>& cells) {
  std::map<std::string, std::map<std::string, std::vector<const MatrixCell*>>> digests;
  for (const MatrixCell& cell : cells)
    if (!cell.digest.empty()) digests[bits_of_cell(cell.layout)][cell.digest].push_back(&cell);
  bool one_each = true;
  Table table{.header = {"bits", "cells", "params_digest"}, .rows = {}};
  for (const auto& [bits, found] : digests) {
    one_each = one_each && found.size() == 1;
    for (const auto& [digest, of] : found) table.rows.push_back({bits, fmt::format("{}", of.size()), digest});
  }
  fmt::print("{}", to_text(table));
  for (const auto& [bits, found] : digests)
    if (found.size() > 1) {
      const auto fewest = std::ranges::min_element(found, {}, [](const auto& entry) { return entry.second.size(); });
      fmt::print("different bits within '{}', such as {}\n", bits,
                 fmt::join(values_of(fewest->second.front()->layout), " "));
    }
  return one_each;
}

}  // namespace

const MatrixCell* nearest_that_runs(const std::vector<MatrixCell>& cells, const MatrixCell& from) {
  const MatrixCell* nearest = nullptr;
  for (const MatrixCell& cell : cells)
    if (cell.refused.empty() &&
        (nearest == nullptr || difference(cell.layout, from.layout) < difference(nearest->layout, from.layout)))
      nearest = &cell;
  return nearest;
}

std::string flags_of_difference(const Layout& from, const Layout& to) {
  const std::vector<std::string> before = values_of(from), after = values_of(to);
  std::vector<std::string> changed;
  for (size_t i = 0; i < before.size(); ++i)
    if (before[i] != after[i]) changed.push_back(after[i]);
  return fmt::format("{}", fmt::join(changed, " "));
}

bool matrix(const RunConfig& base, const MatrixAxes& axes, bool train) {
  std::vector<MatrixCell> cells;
  for (const Layout& layout : matrix_layouts(base.layout, axes)) {
    cells.push_back(matrix_cell(base, layout, train));
    if (train && cells.size() % 100 == 0)
      fmt::print(stderr, "shardpipe: {} of {} cells trained\n", cells.size(), axes.cells());
  }

  const size_t inner = axes.precisions.size() * axes.recomputes.size() * axes.offloads.size();
  Table table{.header = {"schedule"}, .rows = {}};
  for (const int zero : axes.zero) table.header.push_back(fmt::format("ZeRO {}", zero));
  auto cell = cells.begin();
  for (const std::string& schedule : axes.schedules) {
    std::vector<std::string>& row = table.rows.emplace_back(std::vector{schedule});
    for (size_t z = 0; z < axes.zero.size(); ++z) {
      const auto end = cell + static_cast<std::ptrdiff_t>(inner);
      const auto run = std::count_if(cell, end, [](const MatrixCell& c) { return c.refused.empty(); });
      row.push_back(fmt::format("{} of {}", run, inner));
      cell = end;
    }
  }
  const auto all = std::ranges::count_if(cells, [](const MatrixCell& c) { return c.refused.empty(); });
  std::vector<std::string> precisions;
  for (const DType precision : axes.precisions) precisions.emplace_back(to_string(precision));
  fmt::print("{} on pp {} × dp {} ranks; cells that {}, of\n  --precision {}\n  --recompute {}\n  --offload {}\n\n{}\n",
             base.model.name, base.layout.pp, base.layout.dp,
             train ? fmt::format("trained {} steps", base.steps) : "run", fmt::join(precisions, " | "),
             fmt::join(axes.recomputes, " | "), fmt::join(axes.offloads, " | "), to_text(table));
  print_refused(cells);
  const bool one_digest_each = !train || print_digests(cells);
  fmt::print("{} of {} cells run{}\n", all, cells.size(),
             !train            ? ""
             : one_digest_each ? ", and all of one precision and cadence have the same bits"
                               : ", but some that should have the same bits do not");
  return static_cast<size_t>(all) == cells.size() && one_digest_each;
}

}  // namespace shardpipe
