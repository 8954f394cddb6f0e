// A layout against one plain rank, value by value: every activation, gradient and weight has a name that means the same
// in both, so comparing them is a look-up.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "train/trainer.h"

namespace shardpipe {

struct Verification {
  bool equal = false;
  uint64_t tensors = 0;  // parameters compared, by tensor
  uint64_t values = 0;   // buffers compared in all: activations, gradients, weights
  int64_t steps = 0;
  std::string first_difference;  // empty when equal; else step, tensor, micro-batch, element, both values, units in the
                                 // last place
};

// Trains twice: the layout, and straight down (plain_loop.h). `disturb`, for tests, is called on each action of each
// rank before its results are compared, and may change them.
using Disturb = std::function<void(int world_rank, int64_t step, const Action&, const RankProgram&, std::byte* arena)>;
Verification verify_layout(const RunConfig& config, const SampleSource& samples, const Disturb& disturb = nullptr);

// How many floats lie between two: 0 for the same bits, 1 for neighbours. -0 and +0 are neighbours here.
uint64_t ulps_between(float a, float b);

}  // namespace shardpipe
