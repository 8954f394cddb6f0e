// Ranks and groups in one line, for the tests of the communicators.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "comm/local/local_world.h"

namespace shardpipe {

inline std::vector<int> all_ranks(int ranks) {
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// Every rank of a world of its own runs `body` with its end of a group of all.
inline void with_group(int ranks, const std::function<void(Communicator&)>& body) {
  LocalWorld world(ranks);
  run_ranks(world, [&](int rank) {
    const auto group = world.join("all", all_ranks(ranks), rank);
    body(*group);
  });
}

// Values of many magnitudes, so that another order of summation gives other bits.
inline std::vector<float> values_of(int rank, size_t count, uint32_t seed = 1) {
  std::mt19937 random(seed * 1000 + static_cast<uint32_t>(rank));
  std::uniform_real_distribution<float> mantissa(-1.0F, 1.0F);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(mantissa(random), static_cast<int>(random() % 20) - 10);
  return values;
}

// ((0 + 1) + (2 + 3)) + (4 + 5), element by element
inline std::vector<float> pairwise_sum(std::vector<std::vector<float>> terms) {
  while (terms.size() > 1) {
    std::vector<std::vector<float>> pairs;
    for (size_t i = 0; i < terms.size(); i += 2) {
      pairs.push_back(terms[i]);
      for (size_t e = 0; i + 1 < terms.size() && e < terms[i].size(); ++e) pairs.back()[e] += terms[i + 1][e];
    }
    terms = std::move(pairs);
  }
  return terms.at(0);
}
inline std::vector<float> sum_of_ranks(int ranks, size_t count, uint32_t seed = 1) {
  std::vector<std::vector<float>> terms;
  for (int rank = 0; rank < ranks; ++rank) terms.push_back(values_of(rank, count, seed));
  return pairwise_sum(std::move(terms));
}

inline void all_gather(Communicator& group, std::span<const float> shard, std::span<float> whole) {
  group.all_gather(std::as_bytes(shard), std::as_writable_bytes(whole));
}

}  // namespace shardpipe
