#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "comm/groups.h"

namespace shardpipe {
namespace {

std::span<const std::byte> bytes_of(const std::vector<int>& values) { return std::as_bytes(std::span(values)); }
std::span<std::byte> bytes_of(std::vector<int>& values) { return std::as_writable_bytes(std::span(values)); }

TEST(SendReceive, MessagesOfAPairArriveInOrder) {
  with_group(2, [](Communicator& pair) {
    for (int i = 0; i < 500; ++i) {
      std::vector<int> message(static_cast<size_t>(i % 17), i);
      if (pair.rank() == 0) {
        pair.send(bytes_of(std::as_const(message)), 1);
      } else {
        std::vector<int> received(message.size());
        pair.receive(bytes_of(received), 0);
        EXPECT_EQ(received, message);
      }
    }
    EXPECT_EQ(pair.wire_bytes().total(), pair.rank() == 0 ? pair.wire_bytes().send : 0);
  });
}

TEST(SendReceive, CountsBytesWhereTheyAreSent) {
  with_group(3, [](Communicator& group) {
    std::vector<std::byte> bytes(100);
    if (group.rank() == 1) group.send(bytes, 2);
    if (group.rank() == 2) group.receive(bytes, 1);
    EXPECT_EQ(group.wire_bytes(), (WireBytes{.send = group.rank() == 1 ? 100U : 0U}));
  });
}

TEST(SendReceive, SendReturnsOnlyOnceReceived) {
  std::atomic<bool> receiving = false;
  with_group(2, [&](Communicator& pair) {
    for (int round = 0; round < 20; ++round) {
      std::vector<int> value(1);
      if (pair.rank() == 0) {
        pair.send(bytes_of(value), 1);
        EXPECT_TRUE(receiving.exchange(false));
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        receiving = true;
        pair.receive(bytes_of(value), 0);
      }
      pair.barrier();
    }
  });
}

TEST(SendReceive, TheSenderMayOverwriteItsBytesAtOnce) {
  with_group(2, [](Communicator& pair) {
    std::vector<int> buffer(10000);
    for (int round = 0; round < 50; ++round) {
      if (pair.rank() == 0) {
        std::ranges::fill(buffer, round);
        pair.send(bytes_of(buffer), 1);
      } else {
        pair.receive(bytes_of(buffer), 0);
        EXPECT_THAT(buffer, testing::Each(round));
      }
    }
  });
}

TEST(SendReceive, EveryPairOfAGroup) {
  with_group(5, [](Communicator& group) {
    for (int from = 0; from < group.size(); ++from) {
      for (int to = 0; to < group.size(); ++to) {
        std::vector<int> value{group.rank() * 10};
        if (from == to) continue;
        if (group.rank() == from) group.send(bytes_of(value), to);
        if (group.rank() == to) group.receive(bytes_of(value), from);
        EXPECT_EQ(value[0], (group.rank() == to ? from : group.rank()) * 10);
      }
    }
  });
}

TEST(SendReceive, TwoMembersTalkWhileOthersWaitInACollective) {
  with_group(4, [](Communicator& group) {
    std::vector<int> value{group.rank()};
    if (group.rank() == 0) group.send(bytes_of(value), 1);
    if (group.rank() == 1) group.receive(bytes_of(value), 0);
    group.barrier();
    EXPECT_EQ(value[0], group.rank() == 1 ? 0 : group.rank());
  });
}

// A pipeline's activations one way and gradients the other, on two communicators and two threads of each rank.
TEST(SendReceive, BothDirectionsAtOnce) {
  constexpr int messages = 200;
  LocalWorld world(2);
  run_ranks(world, [&](int rank) {
    const auto lane = [&](const char* name, int sender) {
      const auto pair = world.join(name, {0, 1}, rank);
      for (int i = 0; i < messages; ++i) {
        std::vector<int> value{i};
        if (rank == sender) {
          pair->send(bytes_of(value), 1 - rank);
        } else {
          std::vector<int> received(1);
          pair->receive(bytes_of(received), 1 - rank);
          EXPECT_EQ(received, value);
        }
      }
    };
    std::thread forward([&] { lane("forward", 0); });
    lane("backward", 1);
    forward.join();
  });
}

}  // namespace
}  // namespace shardpipe
