// Interleaved 1F1B (Megatron-LM PTD-P: Narayanan et al., arXiv:2104.04473, section 2.2 and figure 4 bottom): each rank
// has v chunks, v-1 loops of the pipeline apart. A micro-batch passes all ranks v times in steps of 1/v of their work,
// so filling and draining the pipeline costs 1/v of what it costs 1F1B; v times as many messages pay for it.
//
//   rank 0  F0 F1 f0 f1 .. .. b0 -- .. b1 -- B0 -- .. B1 --      (p = 2, m = 2, v = 2)
//   rank 1  .. F0 F1 f0 b0 -- f1 b1 -- B0 -- .. B1 -- .. ..      (capital: chunk of the first loop, small: of the
//   second)
//
// Micro-batches go in rounds of at least p: a whole round passes the first chunk, then the second, and so on; in a
// round of p the first is back on rank 0 just when the last has left it. The paper asks for m divisible by p. Here
// m = 5 with p = 4 is one round of 5, m = 9 a round of 5 and one of 4: no rank waits between loops, and the bubble
// stays (p-1)/(vm) of the work. Only m < p leaves gaps between loops.
#include <algorithm>
#include <vector>

#include "schedules/schedule.h"

namespace shardpipe {
namespace {

struct ChunkPass {
  int chunk, micro_batch;  // as in Cell; micro_batch < 0: a place in a round that is not full
};

// One rank's forwards, or its backwards (which begin with its last chunk), in their order. Each round has `places`.
std::vector<ChunkPass> in_rounds(const ScheduleRequest& request, int rank, int rounds, int places, bool backward) {
  std::vector<ChunkPass> passes;
  for (int round = 0; round < rounds; ++round) {
    const int first = request.micro_batches * round / rounds, end = request.micro_batches * (round + 1) / rounds;
    for (int loop = 0; loop < request.chunks_per_rank; ++loop)
      for (int place = 0; place < places; ++place)
        passes.push_back({(backward ? request.chunks_per_rank - 1 - loop : loop) * request.ranks + rank,
                          first + place < end ? first + place : -1});
  }
  return passes;
}

}  // namespace

Schedule interleaved(const ScheduleRequest& request) {
  const auto [ranks, micro_batches, chunks_per_rank, costs] = request;
  Schedule schedule{.name = "interleaved",
                    .chunks = static_cast<uint16_t>(ranks * chunks_per_rank),
                    .micro_batches = micro_batches,
                    .rank_of_chunk = {},
                    .by_rank = {}};
  for (int chunk = 0; chunk < schedule.chunks; ++chunk)
    schedule.rank_of_chunk.push_back(static_cast<uint16_t>(chunk % ranks));

  // All rounds are laid out as if they were full, and places without a micro-batch left out in the end: what remains of
  // an order in which no rank waits for ever is one too.
  const int rounds = chunks_per_rank == 1 ? 1 : std::max(1, micro_batches / ranks);  // one chunk: 1F1B
  const int places = std::max<int>(ranks, (micro_batches + rounds - 1) / rounds);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Cell>& cells = schedule.by_rank.emplace_back();
    const auto add = [&cells](Pass pass, const ChunkPass& run) {
      if (run.micro_batch >= 0)
        cells.push_back({pass, static_cast<uint16_t>(run.chunk), static_cast<uint16_t>(run.micro_batch)});
    };
    const std::vector<ChunkPass> forwards = in_rounds(request, rank, rounds, places, false);
    const std::vector<ChunkPass> backwards = in_rounds(request, rank, rounds, places, true);
    // A rank's forwards until its first backward: all loops but the last, and in that one two for each later rank (one
    // on the way there, one while the first gradient comes back). With one chunk 1F1B's one is enough.
    const int later_ranks = ranks - 1 - rank;
    const size_t warm_up = std::min(
        forwards.size(),
        static_cast<size_t>(chunks_per_rank == 1 ? later_ranks : (chunks_per_rank - 1) * places + 2 * later_ranks));
    for (size_t i = 0; i < warm_up; ++i) add(Pass::Forward, forwards[i]);
    for (size_t i = 0; i < backwards.size(); ++i) {
      if (warm_up + i < forwards.size()) add(Pass::Forward, forwards[warm_up + i]);
      add(Pass::Backward, backwards[i]);
    }
  }
  return schedule;
}

}  // namespace shardpipe
