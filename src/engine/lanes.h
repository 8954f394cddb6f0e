// The machine that runs bound actions on threads: a stream for each lane. On it a CPU step computes, a sleeping one
// pauses and a logging one notes.
#pragma once
#include <array>
#include <span>
#include <string>
#include <vector>

#include "device/streams.h"
#include "engine/bind.h"
#include "engine/machine.h"

namespace shardpipe {

// The threads of a rank: a stream for each lane that one of its programs uses. Its machines share them, one at a time,
// and so does what a thread keeps: a stack, compiled matrix products, panels.
struct LaneStreams {
  // `name` begins the names of the threads. When an action throws, all lanes drop what they have not begun,
  // `on_failure` is called once on the lane that failed, and finish() throws.
  LaneStreams(std::span<const RankProgram* const> programs, const std::string& name,
              Streams::OnFailure on_failure = {});

  size_t of(Lane lane) const { return stream_of_lane[static_cast<size_t>(lane)]; }

  std::array<size_t, lane_count> stream_of_lane{};
  Streams streams;
};

class LaneMachine final : public Machine {
 public:
  // program and streams outlive the machine; `actions` are the program's bound actions.
  LaneMachine(const RankProgram& program, std::vector<BoundAction> actions, LaneStreams& lanes);
  ~LaneMachine() override { lanes_.streams.abandon(); }
  LaneMachine(const LaneMachine&) = delete;
  LaneMachine& operator=(const LaneMachine&) = delete;

  void wait(Lane lane, uint32_t action) override;
  void launch(uint32_t action) override;
  void finish(Timeline& measured) override;

 private:
  static void run(void* machine, uint64_t action);

  const RankProgram& program_;
  std::vector<BoundAction> actions_;
  std::vector<uint64_t> numbers_;  // of each action on its stream, in the current step
  Timeline measured_;
  LaneStreams& lanes_;
};

}  // namespace shardpipe
