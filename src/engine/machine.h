// The only seam between a program and what carries it out. The executor walks a rank's list: waits, launch. It names no
// kind of action; a machine has bound every action to a function before the first step.
#pragma once
#include <cstdint>

#include "program/program.h"
#include "program/timeline.h"

namespace shardpipe {

class Machine {
 public:
  virtual ~Machine() = default;
  virtual void wait(Lane lane,
                    uint32_t action) = 0;    // what is launched on `lane` from now on begins after `action` has ended
  virtual void launch(uint32_t action) = 0;  // on its lane, after all that was launched there
  virtual void finish(Timeline& measured) = 0;  // returns when all has ended; throws what an action threw
};

// One step of one rank.
void execute(const RankProgram&, Machine&, Timeline& measured);

}  // namespace shardpipe
