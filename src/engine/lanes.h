// The machine that runs bound actions on threads: a stream for each lane that the program uses. On it a CPU step
// computes, a sleeping one pauses and a logging one notes.
#pragma once
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "device/streams.h"
#include "engine/bind.h"
#include "engine/machine.h"

namespace shardpipe {

class LaneMachine final : public Machine {
 public:
  // program outlives the machine; `actions` are its bound actions. `name` begins the names of the threads. When an
  // action throws, all lanes drop what they have not begun, `on_failure` is called once on the lane that failed, and
  // finish() throws.
  LaneMachine(const RankProgram& program, std::vector<BoundAction> actions, const std::string& name,
              Streams::OnFailure on_failure = {});

  void wait(Lane lane, uint32_t action) override;
  void launch(uint32_t action) override;
  void finish(Timeline& measured) override;

 private:
  static void run(void* machine, uint64_t action);

  const RankProgram& program_;
  std::vector<BoundAction> actions_;
  std::vector<size_t> stream_of_lane_;
  std::vector<uint64_t> numbers_;  // of each action on its stream, in the current step
  Timeline measured_;
  Streams streams_;  // last: its threads use all of the above
};

}  // namespace shardpipe
