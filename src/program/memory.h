// What a rank of a program holds: bytes by meaning, and the arena that it allocates. Exact: it is what is allocated.
#pragma once
#include <cstdint>

#include "model/shape/model.h"
#include "program/program.h"

namespace shardpipe {

// Peak of each meaning by itself (they need not peak together). Padding of shards is counted; padding() says how much
// it is.
struct RankMemory {
  uint64_t parameters = 0;             // kept between uses
  uint64_t gathered = 0;               // whole copies of sharded parameters
  uint64_t gradients = 0;              // accumulators
  uint64_t micro_batch_gradients = 0;  // waiting to be reduced
  uint64_t optimizer = 0;              // states, and fp32 masters of parameters in 16 bits
  uint64_t activations = 0;            // inputs of blocks, what they save, and their gradients
  uint64_t staging = 0;  // of what the store keeps, the parts that are here: shards, pieces of optimizer states
  uint64_t workspace = 0;
  uint64_t inputs = 0;  // tokens and targets
  uint64_t scalars = 0;
  uint64_t arena = 0;  // all of it, as placed
  uint64_t store = 0;  // beside it, in host memory or a file
};
RankMemory memory(const RankProgram&);

// Bytes of what memory() counts in the arena that hold no parameter: shards have one size, and the last ones are not
// full. Of one data-parallel replica, 0 <= replica < dp.
struct RankPadding {
  uint64_t parameters = 0, gradients = 0, optimizer = 0;
};
RankPadding padding(const RankProgram&, const Model&, uint64_t dp, uint64_t replica, uint64_t replicate = 1);

}  // namespace shardpipe
