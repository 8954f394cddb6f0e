#include "train/timed_run.h"

#include <fmt/format.h>

#include <array>
#include <numeric>
#include <optional>

#include "program/simulate.h"
#include "report/run_folder.h"
#include "report/table.h"
#include "train/trace.h"
#include "train/trainer.h"

namespace shardpipe {

CostModel synthetic_costs(const RunConfig& config, const Model& model) {
  const std::vector<double> usual{10, 10, 10};
  const std::vector<double>& milliseconds = config.block_cost.empty() ? usual : config.block_cost;
  const double recompute = milliseconds.size() > 3 ? milliseconds[3] : milliseconds[0];
  const BlockSeconds layer{milliseconds[0] / 1e3, milliseconds[1] / 1e3, milliseconds[2] / 1e3, recompute / 1e3};
  return {.blocks = fixed_block_seconds(model, {}, layer, {}),
          .message = {},
          .collective = {},
          .update = {},
          .dp = static_cast<uint64_t>(config.layout.dp),
          .replicate = static_cast<uint64_t>(config.layout.replicate)};
}

std::vector<Timeline> run_asleep(const Step& step, const CostModel& costs, int64_t steps) {
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
    const auto duration = [&](const Action& action) {
      return Duration(seconds_of(costs, step.training, place.pipeline_rank, action));
    };
    const Arena arena(rank.arena_bytes);
    LaneStreams lanes(std::array{&rank}, fmt::format("r{}", r),
                      [&world, r](const std::exception_ptr& error) { world.abort(error, r); });
    LaneMachine machine(rank, bind_sleep(step.training, step.shape, place, arena.at(0), duration), lanes);
    const auto barrier = world.join("begin of a step", everyone, r);
    for (int64_t k = 0; k < steps; ++k) {
      barrier->barrier();
      execute(rank, machine, timelines[static_cast<size_t>(r)]);
    }
  });
  return timelines;
}

StepFigures measured_figures(const Step& step, const std::vector<Timeline>& by_world_rank) {
  std::vector<Timeline> of_first_replica;
  for (size_t r = 0; r < by_world_rank.size(); r += static_cast<size_t>(step.shape.layout.dp))
    of_first_replica.push_back(by_world_rank[r]);
  return step_figures(step.training, of_first_replica);
}

void timed_run(const RunConfig& config, const std::string& config_text) {
  const Model model = make_model(config.model);
  const Step step = make_step(model, config.layout, optimizer_states_per_element(config.optimizer.optimizer));
  std::optional<RunFolder> folder;
  if (!config.out.empty()) folder.emplace(config.out, config_text);
  const CostModel costs = synthetic_costs(config, model);
  const std::vector<Timeline> timelines = run_asleep(step, costs, config.steps);

  const StepFigures measured = measured_figures(step, timelines);
  const StepFigures simulated = step_figures(step.training, simulate(step.training, costs, executor_channels));
  Table table{.header = {"pipeline rank", "busy", "simulated"}, .rows = {}};
  for (size_t r = 0; r < measured.ranks.size(); ++r)
    table.rows.push_back({fmt::format("{}", r), fmt::format("{:.4f} s", measured.ranks[r].compute_seconds),
                          fmt::format("{:.4f} s", simulated.ranks[r].compute_seconds)});
  fmt::print("The last of {} steps: blocks that only take time, everything else for real\n{}\n", config.steps,
             to_text(table));
  const auto line = [](std::string_view what, double found, double expected, std::string_view unit) {
    fmt::print("{} measured {:.4f}{}, simulated {:.4f}{}{}\n", what, found, unit, expected, unit,
               expected > 0 ? fmt::format(": {:+.1f} %", 100 * (found / expected - 1)) : "");
  };
  line("step  ", measured.step_seconds, simulated.step_seconds, " s");
  line("bubble", measured.bubble, simulated.bubble, "");
  if (!folder) return;
  if (config.trace) folder->write_file_atomically("trace.json", trace_of(step, timelines));
  fmt::print("written to {}\n", folder->path().string());
}

}  // namespace shardpipe
