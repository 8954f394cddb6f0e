// What this machine can do, measured through the kernels and the transport that train: the figures of a Device.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "plan/hardware.h"

namespace shardpipe {

// A Device is one core here: a rank has one thread that computes.
struct Profile {
  std::string processor;  // as the kernel names it
  std::string library;    // gemm_description()
  uint64_t cores = 1;
  uint64_t memory_bytes = 0;  // of the whole machine
  Device device{};            // its memory_bytes is left 0: how many share the machine is the asker's to say
};

// Every figure is the best of rounds that take all measurements in turn, so that what other programs took away in some
// does not count, with as many threads busy at once as there are cores, so that what cores share is shared here too.
// Ends by itself: no round begins that would pass `most_seconds`, of at least one. `progress` is told the share that is
// done, on a thread of its own choice.
Profile measure_profile(double most_seconds = 40, const std::function<void(double)>& progress = nullptr);

}  // namespace shardpipe
