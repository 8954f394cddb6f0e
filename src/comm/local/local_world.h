// Ranks as threads of this process, and the groups through which they talk. A failing rank stops all others: whoever
// waits for it, or comes to any group later, throws Aborted. Nothing spins: waiting costs no processor time, however
// many ranks share a core.
#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace shardpipe {
namespace local {
class Hall;
}

// Thread-safe. Communicators may outlive it.
class LocalWorld {
 public:
  explicit LocalWorld(int ranks);
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;
  int size() const { return ranks_; }

  // World rank `world_rank`'s end of the group of this name. `members` are its world ranks: a member's place is its
  // rank in the group. Waits for nobody. InvariantError: a member that is out of range or listed twice, a caller that
  // is no member or has joined already, or a name that a group with other members but some of the same uses.
  std::unique_ptr<Communicator> join(const std::string& name, const std::vector<int>& members, int world_rank);

  // Stops all ranks. The first error wins; later ones, and the Aborted that it causes, are dropped.
  void abort(std::exception_ptr error, int world_rank) noexcept;
  std::exception_ptr first_error() const;  // null while all is well

 private:
  const int ranks_;
  mutable std::mutex mutex_;  // guards all below
  struct Group {
    std::shared_ptr<local::Hall> hall;
    std::vector<bool> joined;  // by rank in the group
  };
  std::vector<Group> groups_;
  std::exception_ptr first_error_;
  std::string reason_;
};

// Runs `body(world rank)` on a thread of its own for every rank, named "rank 0", …, and returns when all have ended.
// What a body throws aborts the world; the first error is thrown on.
void run_ranks(LocalWorld&, const std::function<void(int world_rank)>& body);

}  // namespace shardpipe
