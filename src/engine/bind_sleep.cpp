#include <thread>

#include "engine/bind_comm.h"

namespace shardpipe {

std::vector<BoundAction> bind_sleep(const Program& program, const StepShape& shape, const RankPlace& place,
                                    std::byte* arena, const std::function<Duration(const Action&)>& duration) {
  uint64_t highest_byte = 0;
  std::vector<BoundAction> bound;
  for (const Action& action : program.by_pipeline_rank[place.pipeline_rank].actions) {
    if (action.group != none)
      bound.push_back(bind_communication(program, shape, place, {arena, &highest_byte}, action));
    else
      bound.emplace_back([pause = duration(action)] { std::this_thread::sleep_for(pause); });
  }
  return bound;
}

}  // namespace shardpipe
