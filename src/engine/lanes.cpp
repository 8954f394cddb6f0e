#include "engine/lanes.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "program/text.h"

namespace shardpipe {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool uses(const RankProgram& program, int lane) {
  return std::ranges::any_of(program.actions,
                             [&](const Action& action) { return static_cast<int>(action.lane) == lane; });
}

std::vector<std::string> stream_names(const RankProgram& program, const std::string& name) {
  std::vector<std::string> names;
  for (int lane = 0; lane < lane_count; ++lane)
    if (uses(program, lane)) names.push_back(name + " " + to_string(static_cast<Lane>(lane)));
  return names;
}

}  // namespace

LaneMachine::LaneMachine(const RankProgram& program, std::vector<BoundAction> actions, const std::string& name,
                         Streams::OnFailure on_failure)
    : program_(program),
      actions_(std::move(actions)),
      stream_of_lane_(lane_count, 0),
      numbers_(program.actions.size(), 0),
      measured_(program.actions.size()),
      streams_(stream_names(program, name), program.actions.size() + program.waits.size(), std::move(on_failure)) {
  check_invariant(actions_.size() == program.actions.size(), "{} functions for {} actions", actions_.size(),
                  program.actions.size());
  size_t streams = 0;
  for (int lane = 0; lane < lane_count; ++lane)
    if (uses(program, lane)) stream_of_lane_[static_cast<size_t>(lane)] = streams++;
}

void LaneMachine::wait(Lane lane, uint32_t action) {
  const Lane other = program_.actions[action].lane;
  streams_.wait(stream_of_lane_[static_cast<size_t>(lane)], stream_of_lane_[static_cast<size_t>(other)],
                numbers_[action]);
}

void LaneMachine::launch(uint32_t action) {
  const size_t stream = stream_of_lane_[static_cast<size_t>(program_.actions[action].lane)];
  numbers_[action] = streams_.launch(stream, {.run = run, .context = this, .index = action});
}

void LaneMachine::finish(Timeline& measured) {
  streams_.synchronize();
  measured.assign(measured_.begin(), measured_.end());
}

void LaneMachine::run(void* machine, uint64_t action) {
  auto& self = *static_cast<LaneMachine*>(machine);
  self.measured_[action].begin_seconds = now_seconds();
  self.actions_[action]();
  self.measured_[action].end_seconds = now_seconds();
}

}  // namespace shardpipe
