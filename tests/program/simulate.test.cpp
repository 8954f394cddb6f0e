#include "program/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/error.h"
#include "program/cases.h"
#include "program/check.h"
#include "program/figures.h"
#include "program/lifetime.h"
#include "program/mutate.h"
#include "program/progress.h"
#include "schedules/timing.h"

namespace shardpipe {
namespace {

using testing::HasSubstr;

constexpr ChannelLanes all_lanes[] = {ChannelLanes::OnePerRank, ChannelLanes::Communication,
                                      ChannelLanes::SendsAndReceives, ChannelLanes::AsProgrammed,
                                      ChannelLanes::OnePerMessage};  // from strict to free

double end_of(const std::vector<Timeline>& timelines) {
  double end = 0;
  for (const Timeline& timeline : timelines)
    for (const Span& span : timeline) end = std::max(end, span.end_seconds);
  return end;
}

// One block a chunk, of one replica.
struct Staged {
  Model model;
  StepShape shape;
  Program program;
  Staged(std::string schedule, int64_t pp, int64_t micro_batches, int64_t chunks_per_rank = 1, int zero = 0)
      : model(tiny_model(pp * chunks_per_rank - 2, false)) {
    Layout layout = tiny_layout(std::move(schedule), pp, micro_batches, zero, ReduceEvery::Step, 1);
    layout.chunks_per_rank = chunks_per_rank;
    layout.stages.assign(static_cast<size_t>(pp * chunks_per_rank), 1);
    shape = step_shape(model, layout, 2);
    // Cells that run together are a matter of machines that overlap them: here one follows the other.
    for (std::vector<Cell>& cells : shape.schedule.by_rank)
      for (Cell& cell : cells) cell.with_next = false;
    program = compile(shape);
  }
  Staged(const Staged&) = delete;
};

// Costs of actions that all take some time, no two kinds the same.
CostModel some_costs(uint64_t dp = 1) {
  return {.blocks = {{1, 1.25, 0.75}},
          .message = {0.125, 1e-3},
          .collective = {0.0625, 1e-4},
          .update = {0.03125, 1e-5},
          .dp = dp};
}

// Messages of `transfer` seconds, arithmetic that may differ from block to block; nothing else takes time.
CostModel costs_of(const std::vector<PassCosts>& chunks, double transfer) {
  CostModel costs{.blocks = {}, .message = {transfer, 0}, .collective = {}, .update = {}, .dp = 1};
  for (const PassCosts& chunk : chunks)
    costs.blocks.push_back({chunk.forward, chunk.backward_input, chunk.backward_weight});
  return costs;
}

// Pairs run one after the other, and a chunk of the embedding alone has no input part: its weight part waits for the
// gradient itself.
Schedule as_the_program_runs_it(const StepShape& shape) {
  Schedule schedule = shape.schedule;
  for (std::vector<Cell>& cells : schedule.by_rank) {
    for (Cell& cell : cells) {
      cell.with_next = false;
      if (cell.pass == Pass::BackwardWeight &&
          blocks_of_pass(shape, {Pass::BackwardInput, cell.chunk, cell.micro_batch}).empty())
        cell.pass = Pass::Backward;
    }
    std::erase_if(cells, [&](const Cell& cell) { return blocks_of_pass(shape, cell).empty(); });
  }
  return schedule;
}

// The clock of schedules knows cells and the convention of published figures; the simulator knows actions, lanes,
// buffers and waits. Where the latter cost nothing, they agree.
TEST(Simulate, EqualsTheClockOfTheScheduleWhereMessagesOccupyNothing) {
  std::mt19937 random(11);
  int programs = 0;
  for (const Generator& generator : generators())
    for (const int64_t pp : {2, 3, 4, 8})
      for (const int64_t m : {1, 2, 4, 7, 16})
        for (int64_t v = generator.fewest_chunks; v <= std::min<int64_t>(generator.most_chunks, 3); ++v)
          for (const int zero : {0, 3}) {
            if (pp * v < 3) continue;  // embedding, layer, head
            const Staged s(std::string(generator.name), pp, m, v, zero);
            for (const double transfer : {0.0, 0.3})
              for (const bool uniform : {true, false}) {
                std::vector<PassCosts> chunks;
                for (uint16_t c = 0; c < s.shape.schedule.chunks; ++c) {
                  const auto seconds = [&] { return uniform ? 1 : 0.5 + static_cast<double>(random() % 64) / 64; };
                  chunks.push_back({seconds(), c == 0 ? 0 : seconds(), seconds(), transfer});  // tokens: no gradient
                }
                const Schedule schedule = as_the_program_runs_it(s.shape);
                const CellTimes cells = time_cells(schedule, chunks);
                const std::vector<Timeline> simulated =
                    simulate(s.program, costs_of(chunks, transfer), published_channels);
                ++programs;
                for (size_t r = 0; r < cells.size(); ++r) {
                  size_t action = 0;
                  const std::vector<Action>& actions = s.program.by_pipeline_rank[r].actions;
                  for (size_t c = 0; c < cells[r].size(); ++c) {
                    while (!is_compute(actions[action].kind)) ++action;
                    ASSERT_NEAR(simulated[r][action].begin_seconds, cells[r][c].begin, 1e-9)
                        << generator.name << " pp " << pp << " m " << m << " v " << v << " zero " << zero
                        << " transfer " << transfer << ": rank " << r << ", " << to_string(schedule.by_rank[r][c]);
                    ASSERT_NEAR(simulated[r][action].end_seconds, cells[r][c].end, 1e-9);
                    ++action;
                  }
                }
              }
          }
  EXPECT_GE(programs, 240);
}

// p-1 stages of a micro-batch pass before the last rank begins, and again after it has ended.
TEST(Simulate, GPipeAndOneForwardOneBackwardTakeTheirClosedForms) {
  for (const char* schedule : {"gpipe", "1f1b"})
    for (const int64_t p : {3, 4, 5, 8})
      for (const int64_t m : {1, 2, 4, 8, 17}) {
        const Staged s(schedule, p, m);
        const std::vector<Timeline> times =
            simulate(s.program, costs_of(std::vector<PassCosts>(static_cast<size_t>(p)), 0));
        const StepFigures figures = step_figures(s.program, times);
        const auto stages = static_cast<double>(m + p - 1);
        EXPECT_NEAR(figures.step_seconds, 3 * stages, 1e-9) << schedule << " p " << p << " m " << m;
        EXPECT_NEAR(figures.bubble, static_cast<double>(p - 1) / stages, 1e-9);
        for (int64_t r = 0; r < p; ++r) {
          const RankFigures& rank = figures.ranks[static_cast<size_t>(r)];
          EXPECT_NEAR(rank.first_seconds, static_cast<double>(r), 1e-9);
          EXPECT_NEAR(rank.last_seconds, 3 * stages - 2 * static_cast<double>(r), 1e-9);
          const int64_t in_flight = std::string_view(schedule) == "gpipe" ? m : std::min(p - r, m);
          EXPECT_EQ(rank.peak_micro_batches, static_cast<double>(in_flight)) << "rank " << r;
        }
        EXPECT_NEAR(figures.bubble_of_own_span, figures.bubble, 1e-9);  // rank 0 is there from begin to end
      }
}

// Each message on the way of a single micro-batch there and back is in sight.
TEST(Simulate, MessagesOfASingleMicroBatchAreExposed) {
  const Staged s("1f1b", 4, 1);
  const StepFigures figures = step_figures(s.program, simulate(s.program, costs_of(std::vector<PassCosts>(4), 0.25)));
  EXPECT_NEAR(figures.step_seconds, 12 + 6 * 0.25, 1e-9);
  EXPECT_NEAR(figures.ranks[0].communication_seconds, 2 * 0.25, 1e-9);
  EXPECT_NEAR(figures.ranks[1].communication_seconds, 4 * 0.25, 1e-9);
  EXPECT_NEAR(figures.ranks[1].exposed_seconds, 4 * 0.25, 1e-9);
  EXPECT_NEAR(figures.ranks[1].compute_seconds, 3, 1e-9);
}

uint64_t largest_arena(const Program& program) {
  uint64_t bytes = 0;
  for (const RankProgram& rank : program.by_pipeline_rank) bytes = std::max(bytes, rank.arena_bytes);
  return bytes;
}

// The program of the shape, with every buffer at an address of its own.
Program apart(const StepShape& shape) {
  Program program;
  for (const CompilerPass& pass : passes()) {
    program = pass.run(std::move(program), shape);
    if (pass.name != "place_buffers") continue;
    for (RankProgram& rank : program.by_pipeline_rank) {
      rank.arena_bytes = 0;
      for (Buffer& buffer : rank.buffers) {
        buffer.offset = rank.arena_bytes;
        rank.arena_bytes += buffer.bytes;
      }
    }
  }
  return program;
}

// An activation is not written where another is still being sent from. The figures are those of docs/simulator.md.
TEST(Simulate, WaitsForReusedMemoryAreCounted) {
  const Staged s("1f1b", 8, 32);
  const CostModel costs = costs_of(std::vector<PassCosts>(8), 0.3);
  EXPECT_NEAR(end_of(simulate(s.program, costs, published_channels)), 137.4, 1e-9);
  EXPECT_NEAR(end_of(simulate(s.program, costs, executor_channels)), 153.3, 1e-9);
  EXPECT_EQ(largest_arena(s.program), 64656u);

  const Program wide = apart(s.shape);
  EXPECT_NEAR(end_of(simulate(wide, costs, executor_channels)), 137.4, 1e-9);
  EXPECT_EQ(largest_arena(wide), 167992u);
}

// What a transport with fewer lanes costs interleaved 1F1B, and what reused addresses do. The figures are those of
// docs/simulator.md; 104.35 and 123.45 are also what messages that occupy nothing come to.
TEST(Simulate, InterleavedPaysForFewerLanesAndForReusedMemory) {
  const Staged s("interleaved", 8, 32, 4);
  const Program wide = apart(s.shape);
  struct Line {
    ChannelLanes lanes;
    double step[2], step_apart[2];  // a message takes 0.05 and 0.3 of a stage's forward
  };
  const Line table[] = {
      {ChannelLanes::OnePerRank, {187.6, 392.2}, {187.6, 392.2}},
      {ChannelLanes::Communication, {168.9, 367.55}, {131.8, 305.9}},
      {ChannelLanes::SendsAndReceives, {148.9, 270.9}, {105.8, 157.55}},
      {ChannelLanes::AsProgrammed, {144.05, 248.45}, {104.35, 123.45}},
  };
  for (size_t t = 0; t < 2; ++t) {
    const CostModel costs = costs_of(std::vector<PassCosts>(32, {0.25, 0.25, 0.25}), t == 0 ? 0.05 : 0.3);
    for (const Line& line : table) {
      EXPECT_NEAR(end_of(simulate(s.program, costs, {line.lanes, 0})), line.step[t], 1e-9);
      EXPECT_NEAR(end_of(simulate(wide, costs, {line.lanes, 0})), line.step_apart[t], 1e-9);
    }
    EXPECT_NEAR(end_of(simulate(s.program, costs, published_channels)), table[3].step_apart[t], 1e-9);
  }
}

// A program by hand: each line an action, its buffer alone in 1000 bytes of the arena.
class Sketch {
 public:
  explicit Sketch(size_t ranks) { program_.by_pipeline_rank.resize(ranks); }
  uint16_t group(std::string name, std::vector<uint16_t> ranks, Replicas replicas = Replicas::Own) {
    program_.groups.push_back({std::move(name), std::move(ranks), replicas});
    return static_cast<uint16_t>(program_.groups.size() - 1);
  }
  uint32_t add(size_t r, Action action, uint64_t bytes, std::vector<uint32_t> waits = {}) {
    RankProgram& rank = program_.by_pipeline_rank[r];
    action.first_use = static_cast<uint32_t>(rank.uses.size());
    action.use_count = 1;
    rank.uses.push_back({static_cast<uint32_t>(rank.buffers.size()), Access::Write});
    rank.buffers.push_back({.role = Role::Activation, .bytes = bytes, .offset = rank.arena_bytes});
    rank.arena_bytes += bytes;
    action.first_wait = static_cast<uint32_t>(rank.waits.size());
    action.wait_count = static_cast<uint32_t>(waits.size());
    rank.waits.insert(rank.waits.end(), waits.begin(), waits.end());
    for (const Action& earlier : rank.actions) action.sequence += action.group != none && earlier.group == action.group;
    rank.actions.push_back(action);
    return static_cast<uint32_t>(rank.actions.size() - 1);
  }
  const Program& program() const { return program_; }

 private:
  Program program_;
};

Action forward(uint16_t block, uint16_t m) { return {.kind = Kind::Forward, .index = block, .micro_batch = m}; }
Action send(uint16_t group, uint16_t m) {
  return {.kind = Kind::Send, .lane = Lane::SendForward, .index = 1, .micro_batch = m, .group = group};
}
Action receive(uint16_t group, uint16_t m) {
  return {.kind = Kind::Receive, .lane = Lane::ReceiveForward, .index = 1, .micro_batch = m, .group = group};
}

// Rank 0 sends two messages of 1000 bytes at once; rank 1 is busy until 10 and takes the first then.
struct TwoMessages {
  Sketch sketch{2};
  CostModel costs{.blocks = {{2, 0, 0}, {10, 0, 0}},
                  .message = {0.5, 1e-3},  // 1.5 a message
                  .collective = {},
                  .update = {},
                  .dp = 1};
  TwoMessages() {
    const uint16_t pair = sketch.group("forward 0>1", {0, 1});
    for (uint16_t m = 0; m < 2; ++m) {
      const uint32_t made = sketch.add(0, forward(0, m), 8);
      sketch.add(0, send(pair, m), 1000, {made});
    }
    const uint32_t busy = sketch.add(1, forward(1, 7), 8);
    for (uint16_t m = 0; m < 2; ++m) {
      const uint32_t came = sketch.add(1, receive(pair, m), 1000, {busy});
      sketch.add(1, forward(1, m), 8, {came});
    }
  }
  std::vector<Timeline> times(const ChannelModel& channels) { return simulate(sketch.program(), costs, channels); }
};

void expect_span(const Span& span, double begin, double end) {
  EXPECT_DOUBLE_EQ(span.begin_seconds, begin);
  EXPECT_DOUBLE_EQ(span.end_seconds, end);
}

TEST(Simulate, ARendezvousBeginsWhenBothHaveCome) {
  const std::vector<Timeline> times = TwoMessages().times(executor_channels);
  expect_span(times[0][0], 0, 2);
  expect_span(times[0][1], 10, 11.5);  // send 0
  expect_span(times[0][2], 2, 4);      // arithmetic does not wait for it
  expect_span(times[0][3], 11.5, 13);
  expect_span(times[1][1], 10, 11.5);  // receive 0
  expect_span(times[1][2], 11.5, 21.5);
  expect_span(times[1][3], 11.5, 13);
}

TEST(Simulate, ABufferedSendEndsAtOnceAndItsMessageArrivesByItself) {
  const std::vector<Timeline> times = TwoMessages().times({ChannelLanes::AsProgrammed, 2});
  expect_span(times[0][1], 2, 2);
  expect_span(times[0][3], 4, 4);
  expect_span(times[1][1], 10, 10);  // arrived at 3.5
  expect_span(times[1][3], 10, 10);
}

TEST(Simulate, ASendWaitsForRoomWhereTheChannelIsFull) {
  const std::vector<Timeline> times = TwoMessages().times({ChannelLanes::AsProgrammed, 1});
  expect_span(times[0][1], 2, 2);
  expect_span(times[0][3], 10, 10);
  expect_span(times[1][3], 10, 11.5);
}

TEST(Simulate, OneQueueARankHoldsUpArithmeticToo) {
  const std::vector<Timeline> times = TwoMessages().times(strictest_channels);
  expect_span(times[0][1], 10, 11.5);
  expect_span(times[0][2], 11.5, 13.5);
  expect_span(times[1][1], 10, 11.5);
  expect_span(times[1][2], 11.5, 21.5);
  expect_span(times[1][3], 21.5, 23);
}

// Bytes × (N-1)/N, twice for an all-reduce; a group over several pipeline ranks waits for all of them.
TEST(Simulate, CollectivesTakeTheTimeOfARing) {
  Sketch sketch(2);
  const uint16_t gather = sketch.group("gather 0", {0}, Replicas::All),
                 world = sketch.group("world", {0, 1}, Replicas::All);
  sketch.add(0, {.kind = Kind::Unshard, .lane = Lane::Gather, .index = 0, .group = gather}, 4096);
  sketch.add(0, {.kind = Kind::Reduce, .lane = Lane::Reduce, .group = world}, 8 * 64);
  const uint32_t late = sketch.add(1, forward(0, 0), 8);
  sketch.add(1, {.kind = Kind::Reduce, .lane = Lane::Reduce, .group = world}, 8 * 64, {late});
  CostModel costs{.blocks = {{5, 0, 0}}, .message = {}, .collective = {1, 1.0 / 1024}, .update = {}, .dp = 4};
  const std::vector<Timeline> times = simulate(sketch.program(), costs);
  expect_span(times[0][0], 0, 1 + 3.0);                           // 4096 × 3/4
  expect_span(times[0][1], 5, 5 + 1 + 2 * 512 * 7 / 8 / 1024.0);  // among 8
  expect_span(times[1][1], 5, 5 + 1 + 2 * 512 * 7 / 8 / 1024.0);
  costs.dp = 1;
  expect_span(simulate(sketch.program(), costs)[0][0], 0, 0);  // alone: nothing to gather
}

TEST(Simulate, SplitBackwardsTakeTheirParts) {
  Sketch sketch(1);
  for (const Kind kind : {Kind::Forward, Kind::BackwardInput, Kind::BackwardWeight, Kind::Backward, Kind::Recompute})
    sketch.add(0, {.kind = kind, .index = 1, .micro_batch = 0}, 8);
  const CostModel costs{.blocks = {{}, {1, 2, 4, 0.5}}, .message = {}, .collective = {}, .update = {}, .dp = 1};
  const std::vector<Timeline> times = simulate(sketch.program(), costs);
  expect_span(times[0][1], 1, 3);
  expect_span(times[0][2], 3, 7);
  expect_span(times[0][3], 7, 13);
  expect_span(times[0][4], 13, 13.5);
}

// (m + p - 1) F + m (R + B) + (p - 1) B: the last stage computes each micro-batch again before its backward; on the way
// back the stages before it have done so while they waited for the gradient.
TEST(Simulate, ARecomputeLengthensTheBackwardAndRunsWhileItsGradientIsOnTheWay) {
  constexpr int64_t p = 4, m = 8;
  const auto step_of = [](const std::string& schedule) {
    const Model model = tiny_model(p - 2, false);
    Layout layout = tiny_layout(schedule, p, m, 0, ReduceEvery::Step, 1);
    layout.recompute = "blocks:0-3";
    const Program program = compile(step_shape(model, layout, 0));
    return end_of(simulate(program, {.blocks = {{1, 1, 1, 1}}, .message = {}, .collective = {}, .update = {}, .dp = 1},
                           executor_channels));
  };
  for (const char* schedule : {"gpipe", "1f1b"})
    EXPECT_DOUBLE_EQ(step_of(schedule), (m + p - 1) + m * (1 + 2) + (p - 1) * 2) << schedule;
}

TEST(Simulate, ABlockWithoutCostsIsRefused) {
  const Staged s("1f1b", 3, 2);
  EXPECT_THROW(simulate(s.program, {.blocks = {{}, {}}, .message = {}, .collective = {}, .update = {}, .dp = 1}),
               InvariantError);
}

// From the rules alone: no action begins before what it waits for, none later than it must, members of a group meet.
TEST(Simulate, EveryActionBeginsAsSoonAsItsQueueItsWaitsAndItsGroupLetIt) {
  for_each_case(
      [](const Case& c) {
        if (testing::Test::HasFailure()) return;
        const Program program = compile(c.shape());
        const CostModel costs = some_costs(static_cast<uint64_t>(c.layout.dp));
        for (const ChannelLanes lanes : all_lanes) {
          const std::vector<Timeline> times = simulate(program, costs, {lanes, 0});
          std::vector<std::vector<double>> earliest(times.size());  // by rank and action
          std::map<std::pair<uint16_t, uint32_t>, double> meeting;  // by group and turn
          for (size_t r = 0; r < times.size(); ++r) {
            const RankProgram& rank = program.by_pipeline_rank[r];
            std::map<int, double> queue_end;
            for (size_t i = 0; i < rank.actions.size(); ++i) {
              const Action& action = rank.actions[i];
              const int queue = queue_of(lanes, action.lane);
              double begin = queue == no_queue ? 0 : queue_end[queue];
              for (uint32_t w = 0; w < action.wait_count; ++w)
                begin = std::max(begin, times[r][rank.waits[action.first_wait + w]].end_seconds);
              queue_end[queue] = times[r][i].end_seconds;
              earliest[r].push_back(begin);
              if (action.group != none) {
                double& latest = meeting[{action.group, action.sequence}];
                latest = std::max(latest, begin);
              }
            }
          }
          for (size_t r = 0; r < times.size(); ++r) {
            const RankProgram& rank = program.by_pipeline_rank[r];
            for (size_t i = 0; i < rank.actions.size(); ++i) {
              const Action& action = rank.actions[i];
              const double begin = action.group == none ? earliest[r][i] : meeting[{action.group, action.sequence}];
              ASSERT_EQ(times[r][i].begin_seconds, begin) << c.name << ": " << describe(rank, action);
              ASSERT_EQ(times[r][i].end_seconds, begin + seconds_of(costs, program, static_cast<uint16_t>(r), action))
                  << c.name << ": " << describe(rank, action);
            }
          }
        }
      },
      29);
}

TEST(Simulate, FewerLanesOrLessRoomAreNeverFaster) {
  for_each_case(
      [](const Case& c) {
        if (testing::Test::HasFailure()) return;
        const Program program = compile(c.shape());
        const CostModel costs = some_costs(static_cast<uint64_t>(c.layout.dp));
        double slowest = 1e300;
        for (const ChannelLanes lanes : all_lanes) {
          const double end = end_of(simulate(program, costs, {lanes, 0}));
          EXPECT_LE(end, slowest) << c.name << ", lanes " << static_cast<int>(lanes);
          slowest = end;
        }
        slowest = 1e300;
        for (const uint32_t capacity : {0u, 1u, 2u, unlimited_capacity}) {
          const double end = end_of(simulate(program, costs, {ChannelLanes::AsProgrammed, capacity}));
          EXPECT_LE(end, slowest + 1e-9) << c.name << ", capacity " << capacity;
          slowest = end;
        }
      },
      13);
}

// The same bits each time.
TEST(Simulate, IsDeterministic) {
  const Staged s("1f1b", 4, 8, 1, 3);
  const std::vector<Timeline> first = simulate(s.program, some_costs()), second = simulate(s.program, some_costs());
  for (size_t r = 0; r < first.size(); ++r)
    for (size_t i = 0; i < first[r].size(); ++i) {
      EXPECT_EQ(first[r][i].begin_seconds, second[r][i].begin_seconds);
      EXPECT_EQ(first[r][i].end_seconds, second[r][i].end_seconds);
    }
}

// At any time, what lives lies apart: buffers share addresses only where waits keep their lives apart.
TEST(Simulate, BytesThatLiveAtOneTimeFitTheArena) {
  for_each_case(
      [](const Case& c) {
        if (testing::Test::HasFailure()) return;
        const Program program = compile(c.shape());
        for (const ChannelLanes lanes : all_lanes) {
          const StepFigures figures =
              step_figures(program, simulate(program, some_costs(static_cast<uint64_t>(c.layout.dp)), {lanes, 0}));
          for (size_t r = 0; r < figures.ranks.size(); ++r)
            EXPECT_LE(figures.ranks[r].peak_bytes, program.by_pipeline_rank[r].arena_bytes) << c.name;
        }
      },
      31);
}

// With one queue, time runs as the list does.
TEST(Simulate, PeakBytesOfOneQueueAreThoseOfTheIssueOrder) {
  for_each_case(
      [](const Case& c) {
        if (testing::Test::HasFailure()) return;
        const Program program = compile(c.shape());
        const StepFigures figures =
            step_figures(program, simulate(program,
                                           {.blocks = {{1, 1, 1}},
                                            .message = {1, 0},
                                            .collective = {1, 0},
                                            .update = {1, 0},
                                            .store = {1, 0},
                                            .dp = 2},  // collectives take time even where the layout has one replica
                                           strictest_channels));
        for (size_t r = 0; r < figures.ranks.size(); ++r) {
          const RankProgram& rank = program.by_pipeline_rank[r];
          const std::vector<Lifetime> lifetimes = buffer_lifetimes(rank);
          uint64_t peak = 0;
          for (uint32_t i = 0; i < rank.actions.size(); ++i) {
            uint64_t live = 0;
            for (size_t b = 0; b < rank.buffers.size(); ++b)
              if (!rank.buffers[b].stored &&
                  (rank.buffers[b].resident || (lifetimes[b].first <= i && i <= lifetimes[b].last)))
                live += rank.buffers[b].bytes;
            peak = std::max(peak, live);
          }
          EXPECT_EQ(figures.ranks[r].peak_bytes, peak) << c.name << ", rank " << r;
        }
      },
      41);
}

// Parameters and activations that come in less time than a block takes delay none but the first.
TEST(Simulate, WhatIsFetchedInTimeIsFetchedForNothing) {
  const Model model = tiny_model(6, true);
  for (const char* offload : {"params", "activations", "params,activations"})
    for (const char* schedule : {"gpipe", "1f1b"})
      for (const int zero : {0, 3}) {
        Layout layout = tiny_layout(schedule, 1, 4, zero, ReduceEvery::Step);
        layout.offload = offload;
        const Program program = compile(step_shape(model, layout, 2));
        const auto passes = [&](double of_a_copy) {
          const StepFigures figures = step_figures(program, simulate(program, {.blocks = {{10, 10, 10}},
                                                                               .message = {},
                                                                               .collective = {},
                                                                               .update = {},
                                                                               .store = {of_a_copy, 0},
                                                                               .dp = 2}));
          return figures.ranks[0].last_seconds - figures.ranks[0].first_seconds;
        };
        EXPECT_EQ(passes(2), passes(0)) << offload << " " << to_string(layout);
        EXPECT_GT(passes(40), passes(0)) << offload << " " << to_string(layout);
      }
}

TEST(Simulate, FlopsAndFixedSecondsBecomeCostsOfBlocks) {
  const Model model = tiny_model(2, true);
  const MicroBatchShape micro_batch{2, 8};
  const std::vector<BlockSeconds> by_flops = block_seconds_at(model, micro_batch, 1e6);
  ASSERT_EQ(by_flops.size(), 4u);
  EXPECT_EQ(by_flops[0].forward, 0);  // looking up rows
  EXPECT_DOUBLE_EQ(by_flops[3].forward, 2.0 * 16 * 4 * 67 / 1e6);
  EXPECT_EQ(by_flops[3].backward_input + by_flops[3].backward_weight, 2 * by_flops[3].forward);
  EXPECT_EQ(by_flops[1].recompute, 0);
  const std::vector<Recompute> rules{Recompute::Full, Recompute::Full, Recompute::Selective, Recompute::Full};
  const std::vector<BlockSeconds> again = block_seconds_at(model, micro_batch, 1e6, rules);
  EXPECT_EQ(again[0].recompute, 0);
  EXPECT_DOUBLE_EQ(again[1].recompute, again[1].forward - 2.0 * 16 * 4 * 16 / 1e6);  // without the last product
  EXPECT_DOUBLE_EQ(again[2].recompute, 2.0 * 16 * 8 * 4 / 1e6);  // the causal half of q·kᵀ and p·v
  EXPECT_EQ(again[3].recompute, again[3].forward);
  const std::vector<BlockSeconds> fixed = fixed_block_seconds(model, {0, 0, 1}, {1, 2, 3}, {4, 5, 6});
  EXPECT_EQ(fixed[0].backward_weight, 1);
  EXPECT_EQ(fixed[1].backward_input, 2);
  EXPECT_EQ(fixed[2].forward, 1);
  EXPECT_EQ(fixed[3].forward, 4);
}

// ---- progress and its findings

TEST(Progress, PlacedWhereUsedMessagesDeadlockUntilSendsAreBuffered) {
  const auto ends_naively = [](Program naive) {
    place_messages_where_used(naive);
    return [naive](ChannelLanes lanes, uint32_t capacity) {
      return progress(naive, {lanes, capacity}).waits_for_ever.empty();
    };
  };
  for (const int64_t m : {2, 3, 8}) {
    const auto ends = ends_naively(Staged("1f1b", 4, m).program);
    EXPECT_FALSE(ends(ChannelLanes::OnePerRank, 0));
    EXPECT_FALSE(ends(ChannelLanes::Communication, 0));
    EXPECT_TRUE(ends(ChannelLanes::AsProgrammed, 0));
    EXPECT_TRUE(ends(ChannelLanes::OnePerMessage, 0));
    EXPECT_TRUE(ends(ChannelLanes::OnePerRank, unlimited_capacity));
    EXPECT_TRUE(ends(ChannelLanes::Communication, unlimited_capacity));
  }
  // Interleaved messages get past each other in a lane of sends and one of receives, until a receive waits for a place
  // in the arena that another send still holds.
  const Staged interleaved("interleaved", 4, 8, 2);
  for (const bool own_addresses : {false, true}) {
    const auto ends = ends_naively(own_addresses ? apart(interleaved.shape) : interleaved.program);
    EXPECT_FALSE(ends(ChannelLanes::Communication, 0));
    EXPECT_EQ(ends(ChannelLanes::SendsAndReceives, 0), own_addresses);
    EXPECT_TRUE(ends(ChannelLanes::AsProgrammed, 0));
  }
}

TEST(Progress, TheCycleIsPrintedFromItsFirstActionToItself) {
  Sketch sketch(2);
  const uint16_t forward_pair = sketch.group("forward 0>1", {0, 1}), back_pair = sketch.group("backward 1>0", {1, 0});
  const auto back = [&](Kind kind, Lane lane) {
    return Action{.kind = kind, .lane = lane, .index = 1, .micro_batch = 3, .group = back_pair};
  };
  sketch.add(0, send(forward_pair, 4), 8);
  sketch.add(0, back(Kind::Receive, Lane::ReceiveBackward), 8);
  sketch.add(1, back(Kind::Send, Lane::SendBackward), 8);
  sketch.add(1, receive(forward_pair, 4), 8);
  const Progress stuck = progress(sketch.program(), strictest_channels);
  EXPECT_TRUE(stuck.order.empty());
  EXPECT_EQ(stuck.waits_for_ever,
            "rank 0, action 0: send-fwd send b1 m4 waits for rank 1, action 1: recv-fwd receive b1 m4 waits for "
            "rank 1, action 0: send-bwd send b1 m3 waits for rank 0, action 1: recv-bwd receive b1 m3 waits for "
            "rank 0, action 0");
  EXPECT_EQ(progress(sketch.program(), executor_channels).waits_for_ever, "");
  EXPECT_EQ(progress(sketch.program(), {ChannelLanes::OnePerRank, 1}).waits_for_ever, "");
  EXPECT_THROW(simulate(sketch.program(), some_costs(), strictest_channels), InvariantError);
}

TEST(Progress, AMemberThatNeverComesIsTold) {
  Sketch sketch(2);
  const uint16_t pair = sketch.group("forward 0>1", {0, 1});
  sketch.add(0, send(pair, 0), 8);
  sketch.add(1, receive(pair, 0), 8);
  sketch.add(1, receive(pair, 1), 8);
  for (const uint32_t capacity : {0u, 1u})
    EXPECT_EQ(progress(sketch.program(), {ChannelLanes::AsProgrammed, capacity}).waits_for_ever,
              "rank 1, action 1: recv-fwd receive b1 m1 waits for turn 1 of forward 0>1, to which not all come");
}

TEST(Progress, CompiledProgramsEndUnderEveryChannelModel) {
  for_each_case(
      [](const Case& c) {
        if (testing::Test::HasFailure()) return;
        const Program program = compile(c.shape());
        for (const ChannelLanes lanes : all_lanes)
          for (const uint32_t capacity : {0u, 1u, unlimited_capacity})
            for (const Finding& finding : check(program, {lanes, capacity}))
              ADD_FAILURE() << c.name << ": " << finding.rule << ": " << finding.where;
      },
      17);
}

// Each order between two actions is looked at once: the work grows with the actions, not with their square.
TEST(Progress, StepsGrowWithActions) {
  const auto steps_by_action = [](int64_t pp, int64_t m) {
    const Staged s("1f1b", pp, m, 1, 3);
    size_t actions = 0;
    for (const RankProgram& rank : s.program.by_pipeline_rank) actions += rank.actions.size();
    return static_cast<double>(progress(s.program, executor_channels).steps) / static_cast<double>(actions);
  };
  const double small = steps_by_action(4, 8);
  EXPECT_LT(small, 4);
  EXPECT_LT(steps_by_action(4, 128), 1.2 * small);
  EXPECT_LT(steps_by_action(32, 8), 1.2 * small);
}

}  // namespace
}  // namespace shardpipe
