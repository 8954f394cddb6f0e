// A schedule and the times of its cells as a picture.
#pragma once
#include "report/picture.h"
#include "schedules/timing.h"

namespace shardpipe::cli {

// times: of the schedule's cells, in the picture's unit. Title and rows are filled in, costs and unit are the caller's.
Picture picture_of(const Schedule& schedule, const CellTimes& times);

}  // namespace shardpipe::cli
