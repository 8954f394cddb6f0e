// GPipe (Huang et al., arXiv:1811.06965, figure 2c): every forward, then every backward.
//
//   rank 0  F0 F1 F2 .. .. .. B0 -- B1 -- B2 --
//   rank 1  .. F0 F1 F2 B0 -- B1 -- B2 -- .. ..
//
// All m activations of a rank are alive at once. Backwards run in ascending order, so that gradients accumulate in the
// same order as in every other schedule (the paper draws them descending; the sum is the same, its rounding is not).
#include "schedules/schedule.h"

namespace shardpipe {

Schedule gpipe(const ScheduleRequest& request) {
  const auto [ranks, micro_batches, chunks_per_rank, costs] = request;
  Schedule schedule{
      .name = "gpipe", .chunks = ranks, .micro_batches = micro_batches, .rank_of_chunk = {}, .by_rank = {}};
  for (uint16_t rank = 0; rank < ranks; ++rank) {
    schedule.rank_of_chunk.push_back(rank);
    std::vector<Cell>& cells = schedule.by_rank.emplace_back();
    for (uint16_t m = 0; m < micro_batches; ++m) cells.push_back({Pass::Forward, rank, m});
    for (uint16_t m = 0; m < micro_batches; ++m) cells.push_back({Pass::Backward, rank, m});
  }
  return schedule;
}

}  // namespace shardpipe
