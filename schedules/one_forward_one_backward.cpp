// 1F1B, also PipeDream-Flush (Narayanan et al., arXiv:2006.09503; drawn in Megatron-LM, arXiv:2104.04473, figure 4
// top).
//
//   rank 0  F0 F1 .. .. B0 -- F2 B1 -- .. B2 --
//   rank 1  .. F0 B0 -- F1 B1 -- F2 B2 -- .. ..
//
// Rank r starts with p-1-r forwards, then alternates: it never holds the activations of more than p-r micro-batches,
// whatever their number.
#include <algorithm>

#include "schedules/schedule.h"

namespace shardpipe {

Schedule one_forward_one_backward(const ScheduleRequest& request) {
  const auto [ranks, micro_batches, chunks_per_rank, costs] = request;
  Schedule schedule{
      .name = "1f1b", .chunks = ranks, .micro_batches = micro_batches, .rank_of_chunk = {}, .by_rank = {}};
  for (uint16_t rank = 0; rank < ranks; ++rank) {
    schedule.rank_of_chunk.push_back(rank);
    std::vector<Cell>& cells = schedule.by_rank.emplace_back();
    const auto warm_up = static_cast<uint16_t>(std::min<int>(ranks - 1 - rank, micro_batches));
    uint16_t forward = 0, backward = 0;
    while (forward < warm_up) cells.push_back({Pass::Forward, rank, forward++});
    while (forward < micro_batches) {
      cells.push_back({Pass::Forward, rank, forward++});
      cells.push_back({Pass::Backward, rank, backward++});
    }
    while (backward < micro_batches) cells.push_back({Pass::Backward, rank, backward++});
  }
  return schedule;
}

}  // namespace shardpipe
