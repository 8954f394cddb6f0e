#include "engine/lanes.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "program/text.h"

namespace shardpipe {
namespace {

using Programs = std::span<const RankProgram* const>;

bool uses(const RankProgram& program, Lane lane) {
  return std::ranges::any_of(program.actions, [&](const Action& action) { return action.lane == lane; });
}

std::vector<Lane> lanes_of(Programs programs) {
  std::vector<Lane> lanes;
  for (int i = 0; i < lane_count; ++i) {
    const auto lane = static_cast<Lane>(i);
    if (std::ranges::any_of(programs, [&](const RankProgram* program) { return uses(*program, lane); }))
      lanes.push_back(lane);
  }
  return lanes;
}

std::vector<std::string> stream_names(Programs programs, const std::string& name) {
  std::vector<std::string> names;
  for (const Lane lane : lanes_of(programs)) names.push_back(name + " " + to_string(lane));
  return names;
}

size_t longest_step(Programs programs) {
  size_t commands = 0;
  for (const RankProgram* program : programs)
    commands = std::max(commands, program->actions.size() + program->waits.size());
  return commands;
}

}  // namespace

LaneStreams::LaneStreams(Programs programs, const std::string& name, Streams::OnFailure on_failure)
    : streams(stream_names(programs, name), longest_step(programs), std::move(on_failure)) {
  const std::vector<Lane> lanes = lanes_of(programs);
  for (size_t i = 0; i < lanes.size(); ++i) stream_of_lane[static_cast<size_t>(lanes[i])] = i;
}

LaneMachine::LaneMachine(const RankProgram& program, std::vector<BoundAction> actions, LaneStreams& lanes)
    : program_(program),
      actions_(std::move(actions)),
      numbers_(program.actions.size(), 0),
      measured_(program.actions.size()),
      lanes_(lanes) {
  check_invariant(actions_.size() == program.actions.size(), "{} functions for {} actions", actions_.size(),
                  program.actions.size());
}

void LaneMachine::wait(Lane lane, uint32_t action) {
  lanes_.streams.wait(lanes_.of(lane), lanes_.of(program_.actions[action].lane), numbers_[action]);
}

void LaneMachine::launch(uint32_t action) {
  numbers_[action] =
      lanes_.streams.launch(lanes_.of(program_.actions[action].lane), {.run = run, .context = this, .index = action});
}

void LaneMachine::finish(Timeline& measured) {
  lanes_.streams.synchronize();
  measured.assign(measured_.begin(), measured_.end());
}

void LaneMachine::run(void* machine, uint64_t action) {
  auto& self = *static_cast<LaneMachine*>(machine);
  self.measured_[action].begin_seconds = now_seconds();
  self.actions_[action]();
  self.measured_[action].end_seconds = now_seconds();
}

}  // namespace shardpipe
