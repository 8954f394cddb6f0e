// Launching is part of a step, and a step may not allocate.
#include <gtest/gtest.h>

#include <atomic>

#include "device/store.h"
#include "device/streams.h"
#include "support/count_allocations.h"
#include "support/temporary_folder.h"

namespace shardpipe {
namespace {

TEST(NoAllocation, InLaunchWaitAndSynchronize) {
  std::atomic<uint64_t> runs = 0;
  const Command command{.run = [](void* context, uint64_t) { ++*static_cast<std::atomic<uint64_t>*>(context); },
                        .context = &runs};
  Streams streams(std::vector<std::string>{"compute", "gather"}, 8);
  streams.launch(0, command);
  streams.launch(1, command);
  streams.synchronize();
  const uint64_t before = allocations;
  for (int step = 0; step < 100; ++step) {
    for (int i = 0; i < 4; ++i) {
      const uint64_t number = streams.launch(0, command);
      streams.wait(1, 0, number);
      streams.launch(1, command);
    }
    streams.synchronize();
  }
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(runs, 802U);
}

TEST(NoAllocation, IsReallyCounted) {
  const uint64_t before = allocations;
  ::operator delete(::operator new(8));
  EXPECT_EQ(allocations, before + 1);
}

TEST(NoAllocation, InReadingAndWritingAStore) {
  const TemporaryFolder folder;
  for (const bool io_uring : {false, true}) {
    const auto store = make_file_store(folder.path(), 3 << 20, {.direct = true, .io_uring = io_uring});
    std::vector<std::byte> bytes(3 << 20);
    const uint64_t before = allocations;
    store->write(0, bytes);
    store->read(0, bytes);
    EXPECT_EQ(allocations, before);
  }
}

}  // namespace
}  // namespace shardpipe
