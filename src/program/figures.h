// What a step's timelines say, simulated or measured: how long, how idle, how much communication shows, how much is
// held.
#pragma once
#include <vector>

#include "program/program.h"
#include "program/timeline.h"

namespace shardpipe {

struct RankFigures {
  double compute_seconds = 0;                  // of blocks: forwards and backwards
  double communication_seconds = 0;            // with some communication under way
  double exposed_seconds = 0;                  // of those, without arithmetic beside it
  double exposed_store_seconds = 0;            // with something copied from or to the store, and nothing else going on
  double first_seconds = 0, last_seconds = 0;  // begin of the first, end of the last forward or backward
  uint64_t peak_bytes = 0;  // live at one time; at most the arena. A buffer lives from the begin of its first use to
                            // the end of its last; one that lives no time is not counted
  double peak_micro_batches = 0;  // in flight: forward begun, last part of the backward not done; in shares of the
                                  // rank's blocks, so that one of two chunks counts a half
};

struct StepFigures {
  double step_seconds = 0;  // from the first begin to the last end, update and all
  // Idle share of the ranks' time, where only arithmetic of blocks is work. Two rules are in use for that time: from
  // the first begin of all to the last end of all, or the longest from a rank's own first begin to its last end (the
  // zero-bubble papers': a rank that starts late and ends late loses nothing).
  double bubble = 0, bubble_of_own_span = 0;
  std::vector<RankFigures> ranks;
};

// One timeline a pipeline rank, all by one clock, whose zero does not matter.
StepFigures step_figures(const Program&, const std::vector<Timeline>&);

}  // namespace shardpipe
