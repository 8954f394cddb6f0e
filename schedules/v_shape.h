// What the schedules have in common whose two chunks a rank lie in a V: chunks go down the ranks 0 … p-1 and come back
// up, so the first and the last chunk share rank 0, and rank p-1 hands a micro-batch to itself.
//
//   rank 0   chunk 0        chunk 3
//   rank 1       chunk 1  chunk 2
//
// A pass of either direction makes the trip in two legs: leg 0 goes from rank 0 to rank p-1, leg 1 back. The forward
// does chunk r on leg 0 and chunk 2p-1-r on leg 1, the backward the other way round.
#pragma once
#include "schedules/schedule.h"

namespace shardpipe {

constexpr int legs = 2;

inline uint16_t v_chunk(Pass pass, int leg, uint16_t rank, uint16_t ranks) {
  const bool lower = (pass == Pass::Forward) == (leg == 0);
  return static_cast<uint16_t>(lower ? rank : 2 * ranks - 1 - rank);
}

// Of any number of chunks: with more than two a rank, the V goes on as a zigzag.
inline uint16_t rank_in_v(size_t chunk, size_t ranks) {
  const size_t turned = chunk % (2 * ranks);
  return static_cast<uint16_t>(turned < ranks ? turned : 2 * ranks - 1 - turned);
}

inline Schedule empty_v_schedule(std::string name, const ScheduleRequest& request) {
  Schedule schedule{.name = std::move(name),
                    .chunks = static_cast<uint16_t>(2 * request.ranks),
                    .micro_batches = request.micro_batches,
                    .rank_of_chunk = {},
                    .by_rank = {}};
  schedule.by_rank.resize(request.ranks);
  for (uint16_t chunk = 0; chunk < schedule.chunks; ++chunk)
    schedule.rank_of_chunk.push_back(rank_in_v(chunk, request.ranks));
  return schedule;
}

}  // namespace shardpipe
