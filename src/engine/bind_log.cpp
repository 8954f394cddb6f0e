#include "engine/bind.h"
#include "program/text.h"

namespace shardpipe {

std::vector<BoundAction> bind_log(const Program& program, const RankPlace& place,
                                  std::vector<std::vector<std::string>>& logs) {
  std::vector<BoundAction> bound;
  const RankProgram& rank = program.by_pipeline_rank[place.pipeline_rank];
  logs.assign(lane_count, {});
  for (const Action& action : rank.actions)
    bound.emplace_back(
        [line = describe(rank, action), &log = logs[static_cast<size_t>(action.lane)]] { log.push_back(line); });
  return bound;
}

}  // namespace shardpipe
