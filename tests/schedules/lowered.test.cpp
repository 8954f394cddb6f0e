// Movement written out: where messages stand, and which transports carry them without an end in waiting.
#include "schedules/lowered.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "schedules/check.h"
#include "schedules/every_schedule.h"
#include "schedules/text.h"
#include "schedules/torch_csv.h"

namespace shardpipe {
namespace {

using testing::IsEmpty;

std::string in_words(const LoweredSchedule& schedule) { return print_torch_csv(schedule); }

Schedule two_stages() { return make_schedule("1f1b", {.ranks = 2, .micro_batches = 2, .chunks_per_rank = 1}); }

TEST(Lowered, MessagesStandWhereTheyAreUsed) {
  EXPECT_EQ(in_words(with_messages(two_stages(), Messages::AtUse)),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
}

TEST(Lowered, MessagesStandWhereTheyAreMade) {
  EXPECT_EQ(in_words(with_messages(two_stages(), Messages::WhenMade)),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

TEST(Lowered, NeighboursOnOneRankSendNothing) {
  const Schedule schedule = read_schedule("schedule a\nchunks 2 v\nrank 0 0F0 1F0 1B0 0B0\n", "a");
  for (const Messages messages : {Messages::AtUse, Messages::WhenMade})
    EXPECT_EQ(in_words(with_messages(schedule, messages)), "0F0,1F0,1B0,0B0\n");
}

TEST(Lowered, PassesAreThoseOfTheSchedule) {
  for_each_schedule(few_micro_batches, 8, [](const Schedule& schedule) {
    EXPECT_EQ(without_movement(without_messages(schedule)), schedule);
    for (const Messages messages : {Messages::AtUse, Messages::WhenMade})
      EXPECT_EQ(without_movement(with_messages(schedule, messages)), schedule);
  });
}

TEST(Lowered, OfRanksThatWaitForEachOtherIsNone) {
  Schedule schedule = two_stages();
  std::swap(schedule.by_rank[0][0], schedule.by_rank[0].back());
  EXPECT_THROW(with_messages(schedule, Messages::WhenMade), InvariantError);
}

// In the order in which messages are made, every schedule runs on the strictest transport, so on any.
TEST(Lowered, WhenMadeRunsOnEveryTransport) {
  for_each_schedule(micro_batches_to_32, 8, [](const Schedule& schedule) {
    EXPECT_THAT(problems_of(with_messages(schedule, Messages::WhenMade), {.lanes = 1, .capacity = 0}), IsEmpty());
  });
}

// What a lowered schedule needs of a transport: of each number of lanes, the least capacity; -1: not even 64 do.
struct Needs {
  int of_one_lane, of_two, of_four;
  bool operator==(const Needs&) const = default;
};
void PrintTo(const Needs& needs, std::ostream* out) {
  *out << fmt::format("{{{}, {}, {}}}", needs.of_one_lane, needs.of_two, needs.of_four);
}
Needs needs_of(const LoweredSchedule& schedule) {
  const auto least = [&](int lanes) {
    for (int capacity = 0; capacity <= 64; ++capacity)
      if (problems_of(schedule, {lanes, capacity}).empty()) return capacity;
    return -1;
  };
  return {least(1), least(2), least(4)};
}

TEST(Lowered, AtUseNeedsBuffersOrLanes) {
  const auto at_use = [](const char* name) {
    return needs_of(
        with_messages(make_schedule(name, {.ranks = 4, .micro_batches = 8, .chunks_per_rank = 0}), Messages::AtUse));
  };
  const std::vector<std::pair<const char*, Needs>> cases{
      {"gpipe", {0, 0, 0}},      {"1f1b", {1, 0, 0}},  {"interleaved", {1, 0, 0}},
      {"looped-bfs", {2, 0, 0}}, {"zb-h1", {1, 0, 0}}, {"zb-h2", {1, 0, 0}},
  };
  for (const auto& [name, expected] : cases) EXPECT_EQ(at_use(name), expected) << name;
}

// PyTorch's lowered file needs no buffer and one lane: its order is safe by itself.
TEST(TorchFiles, NeedOfATransport) {
  const auto file = [](const char* name) { return parse_torch_csv(content_of_torch_file(name), name); };
  EXPECT_EQ(needs_of(file("zb1p_2rank_2stagep_comms")), (Needs{0, 0, 0}));
  for (const char* name : {"dualpipev_4rank_10mb", "zb1p_2rank_2stagep_compute"}) {
    const Schedule passes = without_movement(file(name));
    EXPECT_EQ(needs_of(with_messages(passes, Messages::WhenMade)), (Needs{0, 0, 0})) << name;
    // At use, no buffer is large enough: two ranks take what they send each other, forwards and backwards, in another
    // order than it was sent, so each direction must come in a channel of its own.
    EXPECT_EQ(needs_of(with_messages(passes, Messages::AtUse)), (Needs{-1, -1, 0})) << name;
  }
}

// PyTorch lowered the passes of one of its files, with the parts of a backward together, and wrote the other.
TEST(TorchFiles, MessagesStandWherePyTorchPutThem) {
  const LoweredSchedule theirs = parse_torch_csv(content_of_torch_file("zb1p_2rank_2stagep_comms"), "a.csv");
  EXPECT_EQ(in_words(with_messages(without_movement(theirs), Messages::WhenMade)), in_words(theirs));
}

}  // namespace
}  // namespace shardpipe
