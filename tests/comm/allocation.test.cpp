// A collective is part of a step, and a step may not allocate.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "comm/groups.h"
#include "support/count_allocations.h"

namespace shardpipe {
namespace {

TEST(NoAllocation, InAnyOperationAfterJoin) {
  with_group(4, [](Communicator& group) {
    std::vector<float> whole(40000), shard(10000);
    std::vector<double> scalars(3);
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(shard));
    group.barrier();  // all have made their buffers
    const uint64_t before = allocations;
    for (int round = 0; round < 10; ++round) {
      all_gather(group, shard, whole);
      group.reduce_scatter(whole, shard, true);
      group.all_reduce(whole, whole, false);
      group.all_reduce(scalars);
      group.broadcast(bytes, 2);
      if (group.rank() < 2) group.send(bytes, group.rank() + 2);
      if (group.rank() >= 2) group.receive(bytes, group.rank() - 2);
    }
    group.barrier();
    const uint64_t after = allocations;
    group.barrier();  // nobody goes on, and allocates, before all have looked
    EXPECT_EQ(after, before);
  });
}

TEST(NoAllocation, IsReallyCounted) {
  const uint64_t before = allocations;
  ::operator delete(::operator new(8));
  EXPECT_EQ(allocations, before + 1);
}

}  // namespace
}  // namespace shardpipe
