// From which action to which a buffer holds a value, in issue order.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "program/program.h"

namespace shardpipe {

struct Lifetime {
  uint32_t first = UINT32_MAX, last = 0;  // actions
  bool used() const { return first != UINT32_MAX; }
};

// One for each buffer of the rank.
inline std::vector<Lifetime> buffer_lifetimes(const RankProgram& rank) {
  std::vector<Lifetime> lifetimes(rank.buffers.size());
  for (uint32_t i = 0; i < rank.actions.size(); ++i)
    for (const Use& use : uses_of(rank, rank.actions[i])) {
      Lifetime& lifetime = lifetimes[use.buffer];
      lifetime.first = std::min(lifetime.first, i);
      lifetime.last = std::max(lifetime.last, i);
    }
  return lifetimes;
}

}  // namespace shardpipe
