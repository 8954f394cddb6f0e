// What `shardpipe plan` says where no layout is left: what stands in the way, and the smallest changes that help.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "cli/plan_answer.h"
#include "report/table.h"

namespace shardpipe::cli {
namespace {

// The least memory with which any layout of the request runs, offload among its means; nullopt where there is no
// layout at all.
std::optional<PricedLayout> smallest_of(const PlanRequest& request) {
  constexpr size_t tried = 8;  // sketches are near the truth, but not always in its order
  std::optional<PricedLayout> smallest;
  for (const Layout& layout : smallest_sketches(request, tried)) {
    PricedLayout priced = price(request, simulate_step(request, layout));
    if (!smallest || priced.peak_bytes < smallest->peak_bytes) smallest = std::move(priced);
  }
  return smallest;
}

// No candidate has what the question fixes: a rule that it breaks, or that nothing is left to choose from.
[[noreturn]] void refuse_what_is_fixed(const PlanRequest& request) {
  PlanRequest all = request;
  all.fix = nullptr;
  std::vector<std::string> broken;
  for (Layout& layout : candidate_layouts(all, false)) {
    if (!request.fix(layout) || layout.ranks() != request.devices) continue;
    std::vector<std::string> problems = problems_of(layout, *request.model);
    if (broken.empty() || problems.size() < broken.size()) broken = std::move(problems);
  }
  if (!broken.empty()) throw InputError(broken);
  throw InputError(
      fmt::format("--devices {}: found no layout of --global-batch-size {} with the values that are fixed; allowed: "
                  "others, or fewer "
                  "(pp × dp is --devices, and replicas take equal shares of the batch)",
                  request.devices, request.global_batch_size));
}

}  // namespace

void refuse(const PlanQuestion& question, const PlanResult& result) {
  const PlanRequest& request = question.request;
  if (result.combinations == 0 && request.fix) refuse_what_is_fixed(request);
  if (result.combinations == 0)
    throw InputError(fmt::format(
        "--global-batch-size: found {} for --devices {}, of which no layout can be made: replicas take equal numbers "
        "of "
        "sequences, and pipeline ranks are at most as many as blocks ({}); allowed: multiples of {}",
        request.global_batch_size, request.devices, request.model->blocks.size(), fewest_replicas(request)));
  // One change at a time, each by as little as makes a layout fit.
  std::vector<std::string> changes;
  if (const std::optional<PricedLayout> smallest = smallest_of(request))
    changes.push_back(fmt::format("--memory {} ({}: {})", smallest->peak_bytes, human_bytes(smallest->peak_bytes),
                                  train_command_of(question, smallest->layout)));
  constexpr int64_t most_times = 1024;
  PlanRequest more = request;
  for (int64_t times = 2; times <= most_times; times *= 2) {
    more.devices = request.devices * times;
    more.global_batch_size = request.global_batch_size * (request.global_batch_size % more.devices == 0 ? 1 : times);
    const std::optional<PricedLayout> smallest = smallest_of(more);
    if (!smallest || smallest->peak_bytes > request.memory_limit) continue;
    changes.push_back(more.global_batch_size == request.global_batch_size
                          ? fmt::format("--devices {}", more.devices)
                          : fmt::format("--devices {} --global-batch-size {}", more.devices, more.global_batch_size));
    break;
  }
  throw InputError(fmt::format(
      "--memory: found {} for an arena, in which no layout of this model fits; allowed: {}",
      human_bytes(request.memory_limit),
      changes.empty() ? "a smaller model, or shorter sequences" : fmt::format("{}", fmt::join(changes, "; or "))));
}

}  // namespace shardpipe::cli
