// What happens when a rank fails, or when ranks disagree: every rank stops, with the error that says why.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "comm/groups.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What every member throws when each calls its own function; nobody may hang or get through.
std::vector<std::string> errors_of(int ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  with_group(ranks, [&](Communicator& group) {
    std::string& error = errors[static_cast<size_t>(group.rank())];
    try {
      body(group);
      error = "none";
    } catch (const InvariantError& caught) {
      error = caught.what();
    }
  });
  return errors;
}

TEST(Disagreement, OnTheOperationIsTheSameErrorOnAllMembers) {
  const auto errors = errors_of(3, [](Communicator& group) {
    std::vector<float> whole(24), shard(8);
    if (group.rank() == 2) all_gather(group, shard, whole);
    if (group.rank() != 2) group.all_reduce(whole, whole, false);
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("group 'all'"), HasSubstr("rank 2 (world rank 2) calls all_gather of 96 bytes"),
                             HasSubstr("calls all_reduce of 24 floats")));
  }
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_EQ(errors[0], errors[2]);
}

TEST(Disagreement, OnTheSize) {
  for (const std::string& error : errors_of(4, [](Communicator& group) {
         std::vector<float> values(group.rank() == 1 ? 11 : 10);
         group.all_reduce(values, values, false);
       })) {
    EXPECT_THAT(error,
                AllOf(HasSubstr("rank 1"), HasSubstr("all_reduce of 11 floats"), HasSubstr("all_reduce of 10 floats")));
  }
}

TEST(Disagreement, OnAccumulation) {
  for (const std::string& error : errors_of(2, [](Communicator& group) {
         std::vector<float> whole(2), shard(1);
         group.reduce_scatter(whole, shard, group.rank() == 1);
       })) {
    EXPECT_THAT(error,
                AllOf(HasSubstr("reduce_scatter of 2 floats, accumulated"), HasSubstr("reduce_scatter of 2 floats")));
  }
}

TEST(Disagreement, OnTheRoot) {
  for (const std::string& error : errors_of(2, [](Communicator& group) {
         std::vector<std::byte> bytes(3);
         group.broadcast(bytes, group.rank());
       })) {
    EXPECT_THAT(error,
                AllOf(HasSubstr("broadcast of 3 bytes from rank 0"), HasSubstr("broadcast of 3 bytes from rank 1")));
  }
}

TEST(Disagreement, OnTheSizeOfAMessage) {
  for (const std::string& error : errors_of(2, [](Communicator& pair) {
         std::vector<std::byte> bytes(pair.rank() == 0 ? 16 : 12);
         if (pair.rank() == 0) pair.send(bytes, 1);
         if (pair.rank() == 1) pair.receive(bytes, 0);
       })) {
    EXPECT_THAT(error, AllOf(HasSubstr("send of 16 bytes to rank 1"), HasSubstr("receive of 12 bytes from rank 0")));
  }
}

TEST(Disagreement, TwoSendersOrTwoReceiversCanNeverMeet) {
  for (const std::string& error : errors_of(2, [](Communicator& pair) {
         std::vector<std::byte> bytes(4);
         pair.send(bytes, 1 - pair.rank());
       })) {
    EXPECT_THAT(error, AllOf(HasSubstr("send of 4 bytes to rank 0"), HasSubstr("send of 4 bytes to rank 1")));
  }
  for (const std::string& error : errors_of(2, [](Communicator& pair) {
         std::vector<std::byte> bytes(4);
         pair.receive(bytes, 1 - pair.rank());
       })) {
    EXPECT_THAT(error, AllOf(HasSubstr("receive of 4 bytes from rank 0"), HasSubstr("receive of 4 bytes from rank 1")));
  }
}

TEST(Disagreement, AMessageToAMemberThatIsInACollective) {
  for (const std::string& error : errors_of(3, [](Communicator& group) {
         std::vector<std::byte> bytes(4);
         if (group.rank() == 0) group.send(bytes, 1);
         if (group.rank() != 0) group.barrier();
       })) {
    EXPECT_THAT(error, AllOf(HasSubstr("send of 4 bytes to rank 1"), HasSubstr("barrier")));
  }
}

TEST(Disagreement, SizesThatCannotBeRightAreTheCallersError) {
  with_group(2, [](Communicator& group) {
    std::vector<float> ten(10), four(4);
    const auto refuses = [&](auto call, const char* text) {
      EXPECT_THAT(call, ThrowsMessage<InvariantError>(HasSubstr(text)));
    };
    refuses([&] { all_gather(group, four, ten); }, "all_gather of 40 bytes is not 2 ranks × 16");
    refuses([&] { group.reduce_scatter(ten, four, false); }, "reduce_scatter of 10 floats is not 2 ranks × 4");
    refuses([&] { group.all_reduce(ten, four, false); }, "all_reduce of 10 floats into 4");
    refuses([&] { group.send({}, group.rank()); }, "send to rank");
    refuses([&] { group.receive({}, 2); }, "receive from rank 2 of 2");
    refuses([&] { group.broadcast({}, -1); }, "broadcast from rank -1 of 2");
    group.barrier();  // and the group is as good as before
  });
}

TEST(Failure, TheFirstErrorIsTheOneThatIsThrown) {
  std::atomic<int> stopped = 0;
  const auto run = [&] {
    with_group(5, [&](Communicator& group) {
      group.barrier();
      if (group.rank() == 3) throw Broken("rank 3 has had enough");
      try {
        group.barrier();
      } catch (const Aborted& aborted) {
        EXPECT_STREQ(aborted.what(), "stopped because rank 3 failed: rank 3 has had enough");
        ++stopped;
        throw;
      }
    });
  };
  EXPECT_THAT(run, ThrowsMessage<Broken>("rank 3 has had enough"));
  EXPECT_EQ(stopped, 4);
}

TEST(Failure, WhatIsNotAnExceptionStopsTheRanksToo) {
  EXPECT_THROW(with_group(2, [](Communicator& group) { group.rank() == 0 ? throw 7 : group.barrier(); }), int);
}

TEST(Failure, ReachesEveryKindOfWait) {
  for (int kind = 0; kind < 8; ++kind) {
    SCOPED_TRACE(kind);
    const auto run = [&] {
      with_group(3, [&](Communicator& group) {
        std::vector<float> whole(6), shard(2);
        std::vector<double> scalar(1);
        std::vector<std::byte> bytes(4);
        if (group.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3));
          throw Broken("late");
        }
        switch (kind) {
          case 0:
            group.send(bytes, 2);
            break;
          case 1:
            group.receive(bytes, 2);
            break;
          case 2:
            all_gather(group, shard, whole);
            break;
          case 3:
            group.reduce_scatter(whole, shard, true);
            break;
          case 4:
            group.all_reduce(whole, whole, false);
            break;
          case 5:
            group.all_reduce(scalar);
            break;
          case 6:
            group.broadcast(bytes, 0);
            break;
          default:
            group.barrier();
            break;
        }
        ADD_FAILURE() << "nobody can get here";
      });
    };
    EXPECT_THROW(run(), Broken);
  }
}

TEST(Failure, ReachesGroupsInWhichTheFailedRankIsNot) {
  LocalWorld world(3);
  const auto run = [&] {
    run_ranks(world, [&](int rank) {
      if (rank == 2) throw Broken("outside");
      const auto pair = world.join("pair", {0, 1}, rank);
      for (;;) pair->barrier();
    });
  };
  EXPECT_THROW(run(), Broken);
  EXPECT_THROW((void)world.join("later", {0}, 0), Aborted);
  EXPECT_TRUE(world.first_error());
}

// Rank 1 throws after a random number of operations of a random kind, while several threads a rank are busy.
TEST(Failure, AtARandomMomentStopsAllThreadsOfAllRanks) {
  const uint32_t first_seed = std::random_device{}();
  for (uint32_t seed = first_seed; seed < first_seed + 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    constexpr int ranks = 4, lanes = 3;
    LocalWorld world(ranks);
    const auto run = [&] {
      run_ranks(world, [&](int rank) {
        std::vector<std::thread> threads;
        for (int lane = 0; lane < lanes; ++lane) {
          threads.emplace_back([&, lane] {
            try {
              const auto group = world.join("lane " + std::to_string(lane), all_ranks(ranks), rank);
              std::mt19937 shared(seed + static_cast<uint32_t>(lane));
              const uint32_t fails_at = lane == 0 && rank == 1 ? seed % 97 : UINT32_MAX;
              std::vector<float> whole(4096), shard(whole.size() / ranks);
              for (uint32_t operation = 0;; ++operation) {
                if (operation == fails_at) throw Broken("at operation " + std::to_string(operation));
                switch (shared() % 5) {
                  case 0:
                    group->all_reduce(whole, whole, false);
                    break;
                  case 1:
                    all_gather(*group, shard, whole);
                    break;
                  case 2:
                    group->reduce_scatter(whole, shard, false);
                    break;
                  case 3:
                    group->barrier();
                    break;
                  default: {
                    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(shard));
                    if (rank % 2 == 0) group->send(bytes, rank + 1);
                    if (rank % 2 == 1) group->receive(bytes, rank - 1);
                  }
                }
              }
            } catch (...) {
              world.abort(std::current_exception(), rank);
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
      });
    };
    EXPECT_THAT(run, ThrowsMessage<Broken>("at operation " + std::to_string(seed % 97)));
  }
}

TEST(Failure, OfAMisusedCommunicatorIsToldNotHung) {
  LocalWorld world(2);
  const auto run = [&] {
    run_ranks(world, [&](int rank) {
      if (rank == 1) return;
      const auto group = world.join("g", {0, 1}, rank);
      std::thread first([&] { EXPECT_THROW(group->barrier(), Aborted); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      try {
        group->barrier();
      } catch (...) {
        world.abort(std::current_exception(), rank);
      }
      first.join();
    });
  };
  EXPECT_THAT(run, ThrowsMessage<InvariantError>(HasSubstr("two threads use its communicator at once")));
}

}  // namespace
}  // namespace shardpipe
