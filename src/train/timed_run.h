// A step whose blocks only take time: the real executor with its lanes, messages and collectives, and pauses for the
// arithmetic. What it measures is held against simulate() of the same Program, on a machine with fewer cores than
// ranks.
#pragma once
#include <string>
#include <vector>

#include "engine/rank.h"
#include "program/costs.h"
#include "program/figures.h"
#include "train/run_config.h"

namespace shardpipe {

// Of config's synthetic model: a layer takes what --block-cost says; embedding, head and all that moves bytes nothing.
CostModel synthetic_costs(const RunConfig&, const Model&);

// The last of `steps` steps, by world rank; all ranks begin each step together, and what reaches no other rank takes
// the time that costs give it. Throws what a rank threw first.
std::vector<Timeline> run_asleep(const Step&, const CostModel& costs, int64_t steps);

// Of the first replica of every pipeline rank; the others do the same.
StepFigures measured_figures(const Step&, const std::vector<Timeline>& by_world_rank);

// `train --model synthetic`: config.steps steps; prints the last one beside what the simulator says of it. trace.json
// into config.out where one is asked for.
void timed_run(const RunConfig& config, const std::string& config_text);

}  // namespace shardpipe
