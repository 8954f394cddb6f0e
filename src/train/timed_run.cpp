#include "train/timed_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "report/run_folder.h"
#include "report/table.h"
#include "schedules/timing.h"
#include "train/trace.h"
#include "train/trainer.h"

namespace shardpipe {

std::vector<Timeline> run_asleep(const Step& step, const std::function<Duration(const Action&)>& duration,
                                 int64_t steps) {
  const auto ranks = static_cast<int>(step.shape.layout.ranks());
  LocalWorld world(ranks);
  std::vector<int> everyone(static_cast<size_t>(ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<Timeline> timelines(everyone.size());
  run_ranks(world, [&](int r) {
    RankPlace place = place_of(step.shape, r);
    const auto communicators = join_groups(step.training, step.shape, place, world, "timed");
    place.communicators = &communicators;
    const RankProgram& rank = step.training.by_pipeline_rank[place.pipeline_rank];
    const Arena arena(rank.arena_bytes);
    LaneMachine machine(rank, bind_sleep(step.training, step.shape, place, arena.at(0), duration),
                        fmt::format("r{}", r), [&world, r](const std::exception_ptr& error) { world.abort(error, r); });
    const auto barrier = world.join("begin of a step", everyone, r);
    for (int64_t k = 0; k < steps; ++k) {
      barrier->barrier();
      execute(rank, machine, timelines[static_cast<size_t>(r)]);
    }
  });
  return timelines;
}

double block_seconds(const RunConfig& config, const Model& model, const Action& action) {
  if (!is_compute(action.kind) || model.blocks[action.index].kind != BlockKind::Layer) return 0;
  const std::vector<double> usual{10, 10, 10};
  const std::vector<double>& milliseconds = config.block_cost.empty() ? usual : config.block_cost;
  switch (action.kind) {
    case Kind::Forward:
      return milliseconds[0] / 1e3;
    case Kind::BackwardInput:
      return milliseconds[1] / 1e3;
    case Kind::BackwardWeight:
      return milliseconds[2] / 1e3;
    default:
      return (milliseconds[1] + milliseconds[2]) / 1e3;
  }
}

double Occupancy::bubble() const { return 1 - *std::ranges::max_element(busy_seconds) / step_seconds; }

Occupancy occupancy(const Step& step, const std::vector<Timeline>& timelines) {
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  Occupancy found;
  for (size_t r = 0; r < timelines.size(); ++r) {
    const RankProgram& rank = step.training.by_pipeline_rank[r / static_cast<size_t>(step.shape.layout.dp)];
    double& busy = found.busy_seconds.emplace_back(0);
    for (size_t i = 0; i < rank.actions.size(); ++i) {
      if (!is_compute(rank.actions[i].kind)) continue;
      const Span& span = timelines[r][i];
      busy += span.end_seconds - span.begin_seconds;
      begin = std::min(begin, span.begin_seconds);
      end = std::max(end, span.end_seconds);
    }
  }
  found.step_seconds = end - begin;
  return found;
}

Occupancy scheduled_occupancy(const RunConfig& config, const Step& step) {
  const StepShape& shape = step.shape;
  std::vector<PassCosts> costs(shape.schedule.chunks);
  for (uint16_t chunk = 0; chunk < shape.schedule.chunks; ++chunk) {
    PassCosts& cost = costs[chunk] = {.forward = 0, .backward_input = 0, .backward_weight = 0};
    for (uint16_t b = shape.first_block[chunk]; b < shape.first_block[chunk + 1]; ++b) {
      const auto seconds = [&](Kind kind) { return block_seconds(config, *shape.model, {.kind = kind, .index = b}); };
      cost.forward += seconds(Kind::Forward);
      cost.backward_input += seconds(Kind::BackwardInput);
      cost.backward_weight += seconds(Kind::BackwardWeight);
    }
  }
  Occupancy planned;
  for (const auto& cells : time_cells(shape.schedule, costs)) {
    double& busy = planned.busy_seconds.emplace_back(0);
    for (const CellTime& cell : cells) busy += cell.end - cell.begin;
    planned.step_seconds = std::max(planned.step_seconds, cells.back().end);
  }
  return planned;
}

void timed_run(const RunConfig& config, const std::string& config_text) {
  const Model model = make_model(config.model);
  const Step step = make_step(model, config.layout, optimizer_states_per_element(config.optimizer.optimizer));
  std::optional<RunFolder> folder;
  if (!config.out.empty()) folder.emplace(config.out, config_text);
  const std::vector<Timeline> timelines = run_asleep(
      step, [&](const Action& action) { return Duration(block_seconds(config, model, action)); }, config.steps);

  const Occupancy measured = occupancy(step, timelines), planned = scheduled_occupancy(config, step);
  Table table{.header = {"rank", "busy", "idle"}, .rows = {}};
  for (size_t r = 0; r < timelines.size(); ++r)
    table.rows.push_back({fmt::format("{}", r), fmt::format("{:.4f} s", measured.busy_seconds[r]),
                          fmt::format("{:.4f} s", measured.step_seconds - measured.busy_seconds[r])});
  fmt::print("The last of {} steps: blocks that only take time, everything else for real\n{}\n", config.steps,
             to_text(table));
  fmt::print("step   measured {:.4f} s, by the schedule {:.4f} s\nbubble measured {:.4f}, by the schedule {:.4f}\n",
             measured.step_seconds, planned.step_seconds, measured.bubble(), planned.bubble());
  if (!folder) return;
  if (config.trace) folder->write_file_atomically("trace.json", trace_of(step, timelines));
  fmt::print("written to {}\n", folder->path().string());
}

}  // namespace shardpipe
