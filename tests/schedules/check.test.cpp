// Every rule of check.h: what breaks it is told with rank, cell and reason.
#include "schedules/check.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "schedules/every_schedule.h"
#include "schedules/text.h"
#include "schedules/torch_csv.h"

namespace shardpipe {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Lines = std::vector<std::string>;

Lines in_words(const std::vector<ScheduleProblem>& problems) {
  Lines lines;
  for (const ScheduleProblem& problem : problems) lines.push_back(problem.rule + ": " + to_string(problem));
  return lines;
}

// Of cells alone: `on` places the chunks, as the text format does.
Lines problems_in(const std::string& on, const std::string& ranks, int micro_batches = 0) {
  const std::string header = micro_batches == 0 ? "" : fmt::format("micro-batches {}\n", micro_batches);
  return in_words(problems_of(parse_schedule(fmt::format("schedule a\nchunks {}\n{}{}", on, header, ranks))));
}
Lines problems_in_lowered(const std::string& rows, LoweredChannels channels = {1, 0}) {
  return in_words(problems_of(parse_torch_csv(rows, "a.csv"), channels));
}

TEST(ScheduleChecks, EveryGeneratorPasses) {
  for_each_schedule(micro_batches_to_32, 8,
                    [](const Schedule& schedule) { EXPECT_THAT(in_words(problems_of(schedule)), IsEmpty()); });
}

struct Wrong {
  std::string on, ranks;
  int micro_batches;
  Lines problems;
};

void expect_told(const std::vector<Wrong>& wrongs) {
  for (const Wrong& wrong : wrongs)
    EXPECT_EQ(problems_in(wrong.on, wrong.ranks, wrong.micro_batches), wrong.problems) << wrong.ranks;
}

TEST(ScheduleChecks, PlacementIsTold) {
  expect_told({
      {"on 0", "rank 0 0F0 0B0\nrank 1", 0, {"placement: rank 1: this rank has no chunk"}},
      {"2 loop",
       "rank 0 0F0 1F0 0B0\nrank 1 1B0",
       0,
       {"placement: rank 0, cell 2: 1F0: chunk 1 is on rank 1",
        "once: rank 1: the forward of chunk 1 for micro-batch 0 is missing"}},
  });
  Schedule schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 1, .chunks_per_rank = 1});
  Schedule changed = schedule;
  changed.rank_of_chunk = {0};
  EXPECT_THAT(in_words(problems_of(changed)),
              ElementsAre("placement: 2 ranks, 2 chunks, 1 micro-batches and the ranks of 1 chunks: allowed are one or "
                          "more of each, and a rank for each chunk"));
  changed.rank_of_chunk = {0, 7};
  EXPECT_THAT(in_words(problems_of(changed)), ElementsAre("placement: chunk 1 is on rank 7, but ranks are 0 to 1",
                                                          "placement: rank 1: this rank has no chunk"));
  changed = schedule;
  changed.by_rank[0].push_back({Pass::Forward, 9, 0});
  changed.by_rank[1].push_back({Pass::Forward, 1, 9});
  EXPECT_THAT(in_words(problems_of(changed)), ElementsAre("placement: rank 0, cell 3: 9F0: chunks are 0 to 1",
                                                          "placement: rank 1, cell 3: 1F9: micro-batches are 0 to 0"));
  EXPECT_THAT(in_words(problems_of(Schedule{})), testing::SizeIs(1));
}

TEST(ScheduleChecks, WhatDoesNotRunOnceIsTold) {
  expect_told({
      {"1 loop", "rank 0 0F0 0B0", 2, {"once: rank 0: micro-batch 1 of chunk 0 never runs"}},
      {"1 loop",
       "rank 0 0F3 0B3",
       6,
       {"once: rank 0: micro-batches 0 to 2 of chunk 0 never run",
        "once: rank 0: micro-batches 4 to 5 of chunk 0 never run"}},
      {"1 loop", "rank 0 0F0", 0, {"once: rank 0: the backward of chunk 0 for micro-batch 0 is missing"}},
      {"1 loop", "rank 0 0B0", 0, {"once: rank 0: the forward of chunk 0 for micro-batch 0 is missing"}},
      {"1 loop", "rank 0 0F0 0B0 0F0", 0, {"once: rank 0, cell 3: 0F0: it stands in cell 1 already"}},
      {"1 loop", "rank 0 0F0 0B0 0W0", 0, {"once: rank 0, cell 3: 0W0: the whole backward 0B0 stands in cell 2"}},
      {"1 loop",
       "rank 0 0F0 0I0",
       0,
       {"once: rank 0: the backward's weight part of chunk 0 for micro-batch 0 is missing, its input part stands in "
        "cell 2"}},
      {"1 loop",
       "rank 0 0F0 0W0",
       0,
       {"once: rank 0: the backward's input part of chunk 0 for micro-batch 0 is missing, its weight part stands in "
        "cell 2"}},
  });
}

TEST(ScheduleChecks, OrderIsTold) {
  expect_told({
      {"1 loop", "rank 0 0B0 0F0", 0, {"order: rank 0, cell 1: 0B0 stands before its forward 0F0, cell 2"}},
      {"1 loop", "rank 0 0I0 0F0 0W0", 0, {"order: rank 0, cell 1: 0I0 stands before its forward 0F0, cell 2"}},
      {"1 loop", "rank 0 0F0 0W0 0I0", 0, {"order: rank 0, cell 2: 0W0 stands before its input part 0I0, cell 3"}},
  });
}

TEST(ScheduleChecks, AccumulationOutOfOrderIsTold) {
  expect_told({
      {"1 loop",
       "rank 0 0F0 0F1 0B1 0B0",
       0,
       {"accumulation: rank 0, cell 4: 0B0 adds to the gradients of chunk 0 behind 0B1; allowed: micro-batches in "
        "ascending order"}},
      {"1 loop",
       "rank 0 0F0 0F1 0I0 0B1 0W0",
       0,
       {"accumulation: rank 0, cell 5: 0W0 adds to the gradients of chunk 0 behind 0B1; allowed: micro-batches in "
        "ascending order"}},
  });
  EXPECT_THAT(problems_in("1 loop", "rank 0 0F1 0F0 0I1 0I0 0W0 0W1"), IsEmpty());  // only sums have an order
}

TEST(ScheduleChecks, PairsOfAnotherFormAreTold) {
  expect_told({
      {"1 loop",
       "rank 0 0F0 0F1 (0B0;0B1)",
       0,
       {"pair: rank 0, cell 3: 0B0 and 0B1 run together: allowed are a forward and a backward"}},
      {"1 loop",
       "rank 0 0F0 0F1 (0B0;0F2;0B1) 0B2",
       0,
       {"pair: rank 0, cell 3: 0B0, 0F2 and the next run together: allowed are two"}},
  });
  Schedule schedule = make_schedule("1f1b", {.ranks = 1, .micro_batches = 1, .chunks_per_rank = 1});
  schedule.by_rank[0].back().with_next = true;
  EXPECT_THAT(in_words(problems_of(schedule)),
              ElementsAre("pair: rank 0, cell 2: 0B0 runs together with the next cell, but there is none"));
  EXPECT_THAT(problems_in("1 loop", "rank 0 0F0 (0F1;0B0) 0B1"), IsEmpty());
}

TEST(ScheduleChecks, DeadlocksAreToldAllTheWayRound) {
  expect_told({
      {"2 loop",
       "rank 0 0F0 0B0 0F1 0B1\nrank 1 1F0 1F1 1B0 1B1",
       0,
       {"deadlock: rank 0, cell 2: rank 0 waits at 0B0 for rank 1's 1B0, which waits at 1F1 for rank 0's 0F1"}},
      {"4 loop",
       "rank 0 0F0 0B0\nrank 1 1F0 1B0\nrank 2 2F0 2F1 2B0 2B1\nrank 3 3F0 3B0 3F1 3B1",
       2,
       {"once: rank 0: micro-batch 1 of chunk 0 never runs", "once: rank 1: micro-batch 1 of chunk 1 never runs"}},
      {"4 loop",
       "rank 0 0F0 0F1 0B0 0B1\nrank 1 1F0 1F1 1B0 1B1\nrank 2 2F0 2B0 2F1 2B1\nrank 3 3F0 3F1 3B0 3B1",
       0,
       {"deadlock: rank 2, cell 2: rank 2 waits at 2B0 for rank 3's 3B0, which waits at 3F1 for rank 2's 2F1"}},
      {"3 loop",
       "rank 0 0F0 0B0 0F1 0B1\nrank 1 1F0 1F1 1B0 1B1\nrank 2 2F0 2B0 2F1 2B1",
       0,
       {"deadlock: rank 0, cell 2: rank 0 waits at 0B0 for rank 1's 1B0, which waits at 1F1 for rank 0's 0F1"}},
      {"4 loop",
       "rank 0 3F0 0F0 3B0 0B0\nrank 1 1F0 1B0\nrank 2 2F0 2B0",
       0,
       {"deadlock: rank 0, cell 1: rank 0 waits at 3F0 for rank 2's 2F0, which waits at 2F0 for rank 1's 1F0, which "
        "waits at 1F0 for rank 0's 0F0"}},
      {"2 v",
       "rank 0 1F0 0F0 1B0 0B0",
       0,
       {"deadlock: rank 0, cell 1: rank 0 waits at 1F0 for its own 0F0, which stands behind it"}},
      {"1 loop",
       "rank 0 (0F0;0B0)",
       0,
       {"deadlock: rank 0, cell 2: rank 0 waits at 0B0 for its own 0F0, which runs together with it"}},
  });
}

TEST(ScheduleChecks, EveryMistakeIsTold) {
  EXPECT_EQ(problems_in("2 loop", "rank 0 0B0 0F0\nrank 1 1F0 1F0 1B1 1B0", 2).size(), 5u);
}

const std::string sharded =  // two stages, one micro-batch
    "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0RESHARD,0REDUCE_GRAD\n"
    "1UNSHARD,1RECV_F0,1F0,1I0,1SEND_B0,1RESHARD,1W0,1REDUCE_GRAD\n";
// `sharded` with one text for another.
Lines problems_with(const std::string& old, const std::string& changed) {
  std::string rows = sharded;
  rows.replace(rows.find(old), old.size(), changed);
  return problems_in_lowered(rows);
}

TEST(LoweredChecks, AWholeOnePasses) { EXPECT_THAT(problems_in_lowered(sharded), IsEmpty()); }

TEST(LoweredChecks, MessagesAreTold) {
  EXPECT_THAT(problems_with("0SEND_F0,", ""), ElementsAre("message: rank 0: 0SEND_F0 is missing"));
  EXPECT_THAT(problems_with("1RECV_F0,", ""), ElementsAre("message: rank 1: 1RECV_F0 is missing"));
  EXPECT_THAT(problems_with("1SEND_B0", "1SEND_B0,1SEND_B0"),
              ElementsAre("message: rank 1, cell 6: 1SEND_B0: it stands in cell 5 already"));
  EXPECT_THAT(problems_with("0SEND_F0", "0SEND_F0,0SEND_F3"),
              ElementsAre("message: rank 0, cell 4: 0SEND_F3: micro-batches are 0 to 0"));
  EXPECT_THAT(problems_with("0SEND_F0", "0SEND_F0,0SEND_B0"),
              ElementsAre("message: rank 0, cell 4: 0SEND_B0: there is no chunk before it"));
  EXPECT_THAT(problems_with("1SEND_B0", "1SEND_B0,1RECV_B0"),
              ElementsAre("message: rank 1, cell 6: 1RECV_B0: there is no chunk after it"));
  EXPECT_THAT(problems_in_lowered("0F0,0SEND_F0,1F0,1B0,0B0"),
              ElementsAre("message: rank 0, cell 2: 0SEND_F0: chunk 1 is on this rank too"));
}

TEST(LoweredChecks, ParametersAreTold) {
  EXPECT_THAT(problems_with("0UNSHARD,", ""),
              ElementsAre("parameters: rank 0, cell 1: 0F0: chunk 0 is not gathered",
                          "parameters: rank 0, cell 4: 0B0: chunk 0 is not gathered",
                          "parameters: rank 0, cell 5: 0RESHARD: chunk 0 is not gathered"));
  EXPECT_THAT(problems_with("0UNSHARD", "0UNSHARD,0UNSHARD"),
              ElementsAre("parameters: rank 0, cell 2: 0UNSHARD: chunk 0 is gathered already"));
  EXPECT_THAT(problems_with("1RESHARD,1W0", "1W0"), IsEmpty());  // held to the end
  // A stage that is never gathered nor given up, where the other is.
  EXPECT_THAT(problems_in_lowered("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              ElementsAre("parameters: rank 1, cell 2: 1F0: chunk 1 is not gathered",
                          "parameters: rank 1, cell 3: 1B0: chunk 1 is not gathered"));
}

TEST(LoweredChecks, ReductionsAreTold) {
  EXPECT_THAT(problems_with("1W0,1REDUCE_GRAD", "1REDUCE_GRAD,1W0"),
              ElementsAre("reduction: rank 1, cell 7: the last reduction of chunk 1 stands before 1W0, cell 8"));
  EXPECT_THAT(problems_with(",1REDUCE_GRAD", ""),
              ElementsAre("reduction: rank 1: the gradients of chunk 1 are never reduced"));
}

TEST(LoweredChecks, PassesAreCheckedAmongMovement) {
  EXPECT_THAT(problems_with("1F0,1I0", "1I0,1F0"),
              ElementsAre("order: rank 1, cell 3: 1I0 stands before its forward 1F0, cell 4"));
  LoweredSchedule schedule = parse_torch_csv(sharded, "a.csv");
  schedule.by_rank[0][0].with_next = true;
  EXPECT_THAT(in_words(problems_of(schedule, {1, 0})),
              ElementsAre("pair: rank 0, cell 1: 0UNSHARD runs together with what follows: allowed are two passes"));
  schedule = parse_torch_csv(sharded, "a.csv");
  schedule.by_rank[0].push_back({LoweredKind::Unshard, 1});
  EXPECT_THAT(in_words(problems_of(schedule, {1, 0})),
              ElementsAre("placement: rank 0, cell 8: 1UNSHARD: chunk 1 is on rank 1"));
}

// 1F1B of two ranks: one sends micro-batch 1 on, the other sends the gradient of 0 back, neither takes.
TEST(LoweredChecks, RanksThatBothSendAreToldUnlessTheTransportHoldsAMessageOrSendsBesides) {
  const std::string rows =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  EXPECT_THAT(problems_in_lowered(rows, {1, 0}),
              ElementsAre("deadlock: rank 0, cell 4: rank 0 waits at 0SEND_F1 for rank 1's 1RECV_F1, which waits at "
                          "1SEND_B0 for rank 0's 0RECV_B0"));
  for (const LoweredChannels channels : {LoweredChannels{1, 1}, {2, 0}, {4, 0}})
    EXPECT_THAT(problems_in_lowered(rows, channels), IsEmpty());
}

TEST(LoweredChecks, MessagesTakenInAnotherOrderThanSentAreToldWhereTheyShareAChannel) {
  const std::string rows =
      "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
      "1RECV_F1,1RECV_F0,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n";
  for (const int lanes : {1, 2, 4})
    EXPECT_THAT(
        problems_in_lowered(rows, {lanes, 8}),
        ElementsAre("deadlock: rank 1, cell 1: rank 1 waits at 1RECV_F1 for its own 1RECV_F0, which stands behind it"))
        << lanes;
}

TEST(LoweredChecks, AModelThatThereIsNotIsRefused) {
  const LoweredSchedule schedule = parse_torch_csv(sharded, "a.csv");
  EXPECT_THROW(problems_of(schedule, {3, 0}), InvariantError);
  EXPECT_THROW(problems_of(schedule, {1, -1}), InvariantError);
}

TEST(ScheduleChecks, InFlightIsFromAForwardToItsLastBackwardPart) {
  EXPECT_THAT(peak_in_flight(parse_schedule("schedule a\nchunks 2 loop\nrank 0 0F0 0F1 0I0 0F2 0W0 0B1 0B2\n"
                                            "rank 1 1F0 1B0 1F1 1B1 1F2 1B2\n")),
              ElementsAre(3, 1));
}

}  // namespace
}  // namespace shardpipe
