// What makes a program right, decided without running it and without the passes that made it. An empty list means: no
// run of it, on any transport that is like the channels or freer, can hang, read what is not there, lose a micro-batch,
// or update parameters with gradients that are not complete.
#pragma once
#include <string>
#include <vector>

#include "program/channels.h"
#include "program/program.h"

namespace shardpipe {

struct Finding {
  std::string rule;   // "read before written"
  std::string where;  // "rank 2, action 118: compute F b7 m3: full g7 #2"
};

// Rules: uses and indices are in range; buffers lie in the arena; members of a group agree on their order, kinds and
// bytes; nothing waits for ever (a finding prints the cycle); every use that conflicts with an earlier one of the same
// bytes is ordered after it by lanes and waits; nothing is read before it is written; each block runs forward, then
// backward, once for each micro-batch; gradients add up micro-batches in ascending order and are complete and reduced
// when the optimizer reads them; each parameter group is updated once on each rank that holds it, and whole again where
// it is kept whole.
//
// What passes with the strictest channels, the default, passes with all others.
std::vector<Finding> check(const Program&, const ChannelModel& = strictest_channels);

}  // namespace shardpipe
