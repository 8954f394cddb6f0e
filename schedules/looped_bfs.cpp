// Looped pipeline, breadth first (Lamy-Poirier, Breadth-First Pipeline Parallelism, arXiv:2211.05953): each rank has v
// chunks, as in the interleaved schedule, but all m micro-batches pass a chunk before any passes the rank's next one.
//
//   rank 0  F0 F1 f0 f1 .. .. .. b0 -- b1 -- B0 -- B1 --      (p = 2, m = 2, v = 2)
//   rank 1  .. F0 F1 f0 f1 b0 -- b1 -- B0 -- B1 -- .. ..      (capital: chunk of the first loop, small: of the second)
//
// The bubble is that of the interleaved schedule; all m activations are alive at once, as in GPipe. What it gives: a
// rank is done with a chunk after one run of m micro-batches, so sharded parameters are gathered once and gradients
// reduced once for each of its passes, while the next chunk computes.
#include "schedules/schedule.h"

namespace shardpipe {

Schedule looped_bfs(const ScheduleRequest& request) {
  const auto [ranks, micro_batches, chunks_per_rank, costs] = request;
  Schedule schedule{.name = "looped-bfs",
                    .chunks = static_cast<uint16_t>(ranks * chunks_per_rank),
                    .micro_batches = micro_batches,
                    .rank_of_chunk = {},
                    .by_rank = std::vector<std::vector<Cell>>(ranks)};
  for (uint16_t chunk = 0; chunk < schedule.chunks; ++chunk) {
    schedule.rank_of_chunk.push_back(chunk % ranks);
    for (uint16_t m = 0; m < micro_batches; ++m) schedule.by_rank[chunk % ranks].push_back({Pass::Forward, chunk, m});
  }
  for (uint16_t chunk = schedule.chunks; chunk-- > 0;)
    for (uint16_t m = 0; m < micro_batches; ++m) schedule.by_rank[chunk % ranks].push_back({Pass::Backward, chunk, m});
  return schedule;
}

}  // namespace shardpipe
