// The doubles that all ranks sum once a step. Every slot is written by one rank and is 0 on all others, so the sum is
// exact whatever its order; each rank then adds the slots up in this canonical order, and gets the same bits in every
// layout.
#pragma once
#include <cstdint>

namespace shardpipe {

struct SlotShape {
  uint64_t parameter_groups, replicas, micro_batches;

  // Σ gradient² of shard `shard` of a parameter group
  uint64_t square(uint64_t group, uint64_t shard) const { return group * replicas + shard; }
  // Σ loss, and in the next slot the number of targets, of one micro-batch of one replica
  uint64_t loss(uint64_t replica, uint64_t micro_batch) const {
    return parameter_groups * replicas + 2 * (replica * micro_batches + micro_batch);
  }
  uint64_t stop() const { return loss(replicas, 0); }  // not 0: someone asked the run to end after this step
  uint64_t count() const { return stop() + 1; }
};

// What an optimizer step reads, and a report prints.
struct StepScalars {
  double loss = 0;            // mean over the counted targets of the global batch
  double tokens = 0;          // how many those are
  double gradient_norm = 0;   // (infinity: not finite) of that mean, over all parameters, each counted once
  double gradient_scale = 0;  // clip factor / tokens / what the loss was scaled by: for a summed gradient
  double loss_scale = 1;      // of fp16, in this step
  bool skipped = false;       // a gradient was not finite: nothing is updated
  bool stop = false;          // all ranks end after this step
};

}  // namespace shardpipe
