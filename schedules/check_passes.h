// The rules of check.h that speak of passes alone, for schedules with and without movement between them.
#pragma once
#include <vector>

#include "schedules/check.h"

namespace shardpipe {

// All but deadlocks. positions[rank][i]: what to call cell i of the rank (its index, among movement).
std::vector<ScheduleProblem> problems_of_passes(const Schedule&, const std::vector<std::vector<int>>& positions);

}  // namespace shardpipe
