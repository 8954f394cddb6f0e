#include "engine/machine.h"

namespace shardpipe {

void execute(const RankProgram& program, Machine& machine, Timeline& measured) {
  for (uint32_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    for (uint32_t w = 0; w < action.wait_count; ++w) machine.wait(action.lane, program.waits[action.first_wait + w]);
    machine.launch(i);
  }
  machine.finish(measured);
}

}  // namespace shardpipe
