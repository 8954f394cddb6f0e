#include "device/streams.h"

#include <gmock/gmock.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <random>

#include "base/error.h"

namespace shardpipe {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<std::string> three = {"compute", "gather", "reduce"};

struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A command out of a callable that outlives it.
template <typename F>
Command command(F& body, uint64_t index = 0) {
  return {.run = [](void* context, uint64_t i) { (*static_cast<F*>(context))(i); }, .context = &body, .index = index};
}

TEST(Streams, RunAStreamsCommandsInOrder) {
  std::vector<uint64_t> order;
  auto append = [&](uint64_t index) { order.push_back(index); };
  Streams streams(three, 100);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(streams.launch(0, command(append, i)), i + 1);
  streams.synchronize();
  ASSERT_EQ(order.size(), 100U);
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_EQ(streams.done(0), 100U);
  EXPECT_EQ(streams.done(1), 0U);
}

TEST(Streams, RunSideBySide) {
  std::latch all_run(3);
  auto meet = [&](uint64_t) { all_run.arrive_and_wait(); };  // hangs unless the three run at once
  Streams streams(three, 1);
  for (size_t stream = 0; stream < 3; ++stream) streams.launch(stream, command(meet));
  streams.synchronize();
}

TEST(Streams, AWaitOrdersTwoStreams) {
  std::atomic<int> written = 0;
  auto write = [&](uint64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++written;
  };
  auto read = [&](uint64_t index) { EXPECT_GE(written.load(), static_cast<int>(index)); };
  Streams streams(three, 50);
  for (uint64_t i = 1; i <= 20; ++i) {
    const uint64_t number = streams.launch(0, command(write));
    streams.wait(1, 0, number);
    streams.launch(1, command(read, i));
  }
  streams.synchronize();
}

TEST(Streams, AWaitMayComeBeforeTheCommandItWaitsFor) {
  std::vector<int> order;
  auto second = [&](uint64_t) { order.push_back(2); };
  auto first = [&](uint64_t) { order.push_back(1); };
  Streams streams(three, 2);
  streams.wait(1, 0, 1);
  streams.launch(1, command(second));
  streams.launch(0, command(first));
  streams.synchronize();
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST(Streams, AreReusedStepAfterStep) {
  std::atomic<int> runs = 0;
  auto count = [&](uint64_t) { ++runs; };
  Streams streams(three, 4);
  for (int step = 1; step <= 200; ++step) {
    for (size_t stream = 0; stream < 3; ++stream) {
      streams.wait(stream, (stream + 1) % 3, static_cast<uint64_t>(step - 1));
      streams.launch(stream, command(count));
    }
    streams.synchronize();
    EXPECT_EQ(runs, 3 * step);
  }
}

TEST(Streams, AThreadHasItsStreamsName) {
  std::string name;
  auto look = [&](uint64_t) {
    char text[16];
    pthread_getname_np(pthread_self(), text, sizeof text);
    name = text;
  };
  Streams streams(std::vector<std::string>{"rank 3 compute lane"}, 1);
  streams.launch(0, command(look));
  streams.synchronize();
  EXPECT_EQ(name, "rank 3 compute ");
}

TEST(Streams, AFullStreamIsRefused) {
  std::latch go(1);
  auto hold = [&](uint64_t) { go.wait(); };
  auto nothing = [](uint64_t) {};
  Streams streams(three, 2);
  streams.launch(0, command(hold));
  streams.wait(1, 0, 1);
  streams.launch(1, command(nothing));
  EXPECT_THAT([&] { streams.launch(1, command(nothing)); },
              ThrowsMessage<InvariantError>(HasSubstr("stream 'gather' is full: it holds 2")));
  go.count_down();
  streams.synchronize();
}

TEST(Streams, AFailureDropsWhatFollowsOnAllOfThem) {
  std::atomic<int> failures = 0;
  std::atomic<bool> ran = false;
  auto fail = [](uint64_t) { throw Broken("kernel 7"); };
  auto never = [&](uint64_t) { ran = true; };
  Streams streams(three, 10, [&](std::exception_ptr error) {
    ++failures;
    EXPECT_THAT([&] { std::rethrow_exception(error); }, ThrowsMessage<Broken>("kernel 7"));
  });
  std::latch queued(1);
  auto hold = [&](uint64_t) { queued.wait(); };
  streams.launch(0, command(hold));
  streams.launch(0, command(fail));
  streams.launch(0, command(never));
  streams.wait(1, 0, 3);
  streams.launch(1, command(never));
  streams.wait(2, 1, 1);
  streams.launch(2, command(never));
  queued.count_down();
  EXPECT_THAT([&] { streams.synchronize(); }, ThrowsMessage<Broken>("kernel 7"));
  EXPECT_THAT([&] { streams.launch(2, command(never)); }, ThrowsMessage<Broken>("kernel 7"));
  EXPECT_FALSE(ran);
  EXPECT_EQ(failures, 1);
}

TEST(Streams, NothingRunsAnyMoreWhenSynchronizeThrows) {
  std::atomic<bool> running = false;
  auto slow = [&](uint64_t) {
    running = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    running = false;
  };
  auto fail = [&](uint64_t) {
    while (!running) std::this_thread::yield();
    throw Broken("early");
  };
  Streams streams(three, 2);
  streams.launch(0, command(slow));
  streams.launch(1, command(fail));
  EXPECT_THROW(streams.synchronize(), Broken);
  EXPECT_FALSE(running);
}

TEST(Streams, AFailureFromOutsideIsTheFirst) {
  Streams streams(three, 2);
  streams.fail(std::make_exception_ptr(Broken("another rank")));
  streams.fail(std::make_exception_ptr(Broken("too late")));
  EXPECT_THAT([&] { streams.synchronize(); }, ThrowsMessage<Broken>("another rank"));
}

TEST(Streams, EndedWhileBusyReleaseWhatRuns) {
  std::latch released(1), running(1);
  auto hold = [&](uint64_t) {
    running.count_down();
    released.wait();
  };
  auto never = [](uint64_t) { FAIL() << "was to be dropped"; };
  {
    Streams streams(three, 2, [&](const std::exception_ptr&) { released.count_down(); });
    streams.launch(0, command(hold));
    streams.launch(0, command(never));
    running.wait();
  }
}

// What commands use may go away after abandon(), and the streams still hold.
TEST(Streams, AbandonedRunNothingAndStayFailed) {
  Streams streams(three, 2);
  streams.abandon();  // nothing there: no failure
  streams.synchronize();
  std::atomic<bool> running = false;
  auto slow = [&](uint64_t) {
    running = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    running = false;
  };
  auto never = [](uint64_t) { FAIL() << "was to be dropped"; };
  streams.launch(0, command(slow));
  streams.launch(0, command(never));
  while (!running) std::this_thread::yield();
  streams.abandon();
  EXPECT_FALSE(running);
  EXPECT_THROW(streams.synchronize(), InvariantError);
  EXPECT_THROW(streams.launch(1, command(never)), InvariantError);
}

// Random waits, in an order that cannot deadlock: each may only wait for what was launched before.
TEST(Streams, RandomWaitsAreAllKept) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr size_t streams_count = 5, commands = 400;
  struct Node {
    std::vector<size_t> after;
    std::atomic<bool> done = false;
  };
  std::vector<Node> nodes(commands);
  auto run = [&](uint64_t index) {
    for (const size_t before : nodes[index].after) EXPECT_TRUE(nodes[before].done) << index << " ran before " << before;
    nodes[index].done = true;
  };
  std::vector<size_t> stream_of(commands);
  std::vector<uint64_t> number_of(commands);
  Streams streams(std::vector<std::string>(streams_count, "lane"), 4 * commands);
  for (size_t i = 0; i < commands; ++i) {
    stream_of[i] = random() % streams_count;
    for (size_t waits = random() % 4; waits > 0 && i > 0; --waits) {
      const size_t before = random() % i;
      nodes[i].after.push_back(before);
      if (stream_of[before] != stream_of[i]) streams.wait(stream_of[i], stream_of[before], number_of[before]);
    }
    number_of[i] = streams.launch(stream_of[i], command(run, i));
  }
  streams.synchronize();
}

}  // namespace
}  // namespace shardpipe
