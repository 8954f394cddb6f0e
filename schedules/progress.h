// Do queues of items that wait for each other all run empty? What check.h finds deadlocks with.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace shardpipe {

constexpr uint32_t no_item = UINT32_MAX;

// An item begins when it is the first of its queue, all that it needs has ended, and the one that it meets (a send its
// receive, and the other way round) can begin as well; those two end together.
struct QueueItem {
  struct Need {
    uint32_t item;
    int own, other;  // positions in the two ranks' lists: what waits, and for what
  };
  int rank, position;
  uint32_t queue;
  std::vector<Need> needs;
  uint32_t meets = no_item;
};

struct Deadlock {
  int rank, position;  // one that waits
  std::string cycle;   // "rank 2 waits at 1B3 for 2B3 of rank 3, which waits at 3B1 for …"
};

// queues: of indices into items, in their order. name: of what stands at a rank's position. nullopt: all run.
std::optional<Deadlock> find_deadlock(const std::vector<QueueItem>& items,
                                      const std::vector<std::vector<uint32_t>>& queues,
                                      const std::function<std::string(int rank, int position)>& name);

}  // namespace shardpipe
