// When each cell of a schedule runs: every rank does its cells in order, each as soon as its rank is free and what it
// needs has arrived. No model, no lanes, no collectives (program/simulate.h has those): what generators place by, what
// orders messages, and what closed forms speak of.
#pragma once
#include <span>
#include <vector>

#include "schedules/schedule.h"

namespace shardpipe {

struct CellTime {
  double begin = 0, end = 0;
};
using CellTimes = std::vector<std::vector<CellTime>>;  // by rank, one a cell, in their order

// costs: of every chunk, or one for all. Two cells that run together (Cell::with_next) begin when both can, take the
// sum of their durations less `overlap_saving`, and end together. InvariantError, naming a rank and its cell, where the
// ranks wait for each other for ever.
CellTimes time_cells(const Schedule&, std::span<const PassCosts> costs, double overlap_saving = 0);

}  // namespace shardpipe
