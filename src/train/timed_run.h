// A step whose blocks only take time: the real executor with its lanes, messages and collectives, and pauses for the
// arithmetic. What it measures can be held against the simulator on a machine with fewer cores than ranks.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "engine/rank.h"
#include "train/run_config.h"

namespace shardpipe {

// The last of `steps` steps, by world rank; all ranks begin each step together. Throws what a rank threw first.
std::vector<Timeline> run_asleep(const Step&, const std::function<Duration(const Action&)>&, int64_t steps);

// Seconds that the blocks of an action of config's synthetic model take: a layer as --block-cost says, embedding and
// head nothing.
double block_seconds(const RunConfig&, const Model&, const Action&);

// How long the busiest rank was at it: from when the first began its first block to when the last ended its last one,
// and how much of that each rank spent on blocks.
struct Occupancy {
  double step_seconds = 0;
  std::vector<double> busy_seconds;  // by world rank
  double bubble() const;             // share of the step that the busiest rank was idle
};
Occupancy occupancy(const Step&, const std::vector<Timeline>&);
// The same by the schedule's own clock, without messages, waits and collectives; by pipeline rank.
Occupancy scheduled_occupancy(const RunConfig&, const Step&);

// `train --model synthetic`: config.steps steps; prints the last one beside what the schedule says. trace.json into
// config.out where one is asked for.
void timed_run(const RunConfig& config, const std::string& config_text);

}  // namespace shardpipe
