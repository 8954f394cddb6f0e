// The doubles that all ranks sum once a step. Every slot is written by one rank and is 0 on all others, so the sum is
// exact whatever its order; each rank then adds the slots up in this canonical order, and gets the same bits in every
// layout.
#pragma once
#include <cstdint>

namespace shardpipe {

struct SlotShape {
  uint64_t parameter_groups, replicas, micro_batches;
  bool exact = false;  // gradients are summed exactly, and so are their squares: see kernels/cpu/exact_squares.h

  uint64_t words() const { return exact ? 4 : 1; }  // of a sum of squares
  // Σ gradient² of shard `shard` of a parameter group, in words()
  uint64_t square(uint64_t group, uint64_t shard) const { return (group * replicas + shard) * words(); }
  // Σ loss, and in the next slot the number of targets, of one micro-batch of one replica
  uint64_t loss(uint64_t replica, uint64_t micro_batch) const {
    return square(parameter_groups, 0) + 2 * (replica * micro_batches + micro_batch);
  }
  uint64_t stop() const { return loss(replicas, 0); }  // not 0: someone asked the run to end after this step
  // Of exact sums: how many elements were out of range. All ranks add to it, in whole numbers.
  uint64_t overflows() const { return stop() + 1; }
  uint64_t count() const { return stop() + 1 + (exact ? 1 : 0); }
};

// What an optimizer step reads, and a report prints.
struct StepScalars {
  double loss = 0;            // mean over the counted targets of the global batch
  double tokens = 0;          // how many those are
  double gradient_norm = 0;   // (infinity: not finite) of that mean, over all parameters, each counted once
  double gradient_scale = 0;  // clip factor / tokens / what the loss was scaled by: for a summed gradient
  double loss_scale = 1;      // of fp16, in this step
  bool skipped = false;       // a gradient was not finite or out of range: nothing is updated
  bool out_of_range = false;  // of exact sums; what is not finite is out of it too
  bool stop = false;          // all ranks end after this step
};

}  // namespace shardpipe
