#include "schedules/schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "schedules/timing.h"
#include "test_paths.h"

namespace shardpipe {
namespace {

// Every generator at every number of ranks, micro-batches and chunks that a page could show.
void for_each_schedule(const std::function<void(const Schedule&, int ranks, int micro_batches)>& visit) {
  for (const Generator& generator : generators())
    for (uint16_t chunks = generator.fewest_chunks; chunks <= std::min<int>(generator.most_chunks, 4); ++chunks)
      for (uint16_t ranks = 1; ranks <= 8; ++ranks)
        for (uint16_t micro_batches = 1; micro_batches <= 32; ++micro_batches) {
          SCOPED_TRACE(
              fmt::format("{}, {} ranks, {} micro-batches, {} chunks", generator.name, ranks, micro_batches, chunks));
          visit(make_schedule(generator.name,
                              {.ranks = ranks, .micro_batches = micro_batches, .chunks_per_rank = chunks}),
                ranks, micro_batches);
        }
}

constexpr PassCosts unit_costs{.forward = 1, .backward_input = 1, .backward_weight = 1, .transfer = 0};

CellTimes unit_times(const Schedule& schedule) { return time_cells(schedule, std::span(&unit_costs, 1)); }

double makespan(const CellTimes& times) {
  double end = 0;
  for (const auto& rank : times) end = std::max(end, rank.back().end);
  return end;
}

// The optimizer is no barrier: the longest that a rank needs from its first forward to its last cell.
double longest_rank(const CellTimes& times) {
  double longest = 0;
  for (const auto& rank : times) longest = std::max(longest, rank.back().end - rank.front().begin);
  return longest;
}

// Chunk-passes whose last backward part has not run; the most of one rank.
int most_in_flight(const std::vector<Cell>& cells) {
  int now = 0, most = 0;
  for (const Cell& cell : cells) {
    if (cell.pass == Pass::Forward) most = std::max(most, ++now);
    if (cell.pass == Pass::Backward || cell.pass == Pass::BackwardWeight) --now;
  }
  return most;
}
int most_in_flight(const Schedule& schedule) {
  int most = 0;
  for (const auto& cells : schedule.by_rank) most = std::max(most, most_in_flight(cells));
  return most;
}

TEST(Schedules, EveryPassOfEveryChunkAndMicroBatchIsThereOnceOnTheRankOfItsChunk) {
  for_each_schedule([](const Schedule& schedule, int ranks, int micro_batches) {
    ASSERT_EQ(schedule.by_rank.size(), static_cast<size_t>(ranks));
    ASSERT_EQ(schedule.rank_of_chunk.size(), schedule.chunks);
    std::set<std::tuple<Pass, int, int>> seen;
    for (size_t r = 0; r < schedule.by_rank.size(); ++r)
      for (const Cell& cell : schedule.by_rank[r]) {
        ASSERT_LT(cell.chunk, schedule.chunks);
        EXPECT_EQ(schedule.rank_of_chunk[cell.chunk], r) << to_string(cell);
        EXPECT_LT(cell.micro_batch, micro_batches) << to_string(cell);
        EXPECT_TRUE(seen.insert({cell.pass, cell.chunk, cell.micro_batch}).second) << to_string(cell) << " twice";
      }
    for (int chunk = 0; chunk < schedule.chunks; ++chunk)
      for (int m = 0; m < micro_batches; ++m) {
        const bool whole = seen.contains({Pass::Backward, chunk, m});
        EXPECT_TRUE(seen.contains({Pass::Forward, chunk, m}));
        EXPECT_NE(whole, seen.contains({Pass::BackwardInput, chunk, m}));
        EXPECT_NE(whole, seen.contains({Pass::BackwardWeight, chunk, m}));
      }
  });
}

// Gradients accumulate in this order, whatever the schedule.
TEST(Schedules, EachChunkRunsItsMicroBatchesInAscendingOrder) {
  for_each_schedule([](const Schedule& schedule, int, int) {
    std::map<std::pair<Pass, int>, int> last;
    for (const std::vector<Cell>& cells : schedule.by_rank)
      for (const Cell& cell : cells) {
        const auto [before, first] = last.try_emplace({cell.pass, cell.chunk}, -1);
        EXPECT_GT(cell.micro_batch, before->second) << to_string(cell);
        before->second = cell.micro_batch;
      }
  });
}

TEST(Schedules, NoRankWaitsForEverAndNoneBeginsBeforeWhatItNeeds) {
  for_each_schedule([](const Schedule& schedule, int, int) {
    const CellTimes times = unit_times(schedule);
    std::map<std::tuple<Pass, int, int>, double> ended;
    for (size_t r = 0; r < times.size(); ++r)
      for (size_t k = 0; k < times[r].size(); ++k) {
        const Cell& cell = schedule.by_rank[r][k];
        ended[{cell.pass, cell.chunk, cell.micro_batch}] = times[r][k].end;
        if (cell.pass == Pass::Backward || cell.pass == Pass::BackwardInput)
          ended[{Pass::BackwardInput, cell.chunk, cell.micro_batch}] = times[r][k].end;
      }
    for (size_t r = 0; r < times.size(); ++r)
      for (size_t k = 0; k < times[r].size(); ++k) {
        const Cell& cell = schedule.by_rank[r][k];
        if (k > 0 && schedule.by_rank[r][k - 1].with_next) {
          EXPECT_EQ(times[r][k].begin, times[r][k - 1].begin);
          EXPECT_EQ(times[r][k].end, times[r][k - 1].end);
        } else if (k > 0) {
          EXPECT_GE(times[r][k].begin, times[r][k - 1].end);
        }
        const auto after = [&](Pass pass, int chunk) {
          EXPECT_GE(times[r][k].begin, (ended.at({pass, chunk, cell.micro_batch}))) << to_string(cell);
        };
        if (cell.pass == Pass::Forward && cell.chunk > 0) after(Pass::Forward, cell.chunk - 1);
        if (cell.pass == Pass::BackwardWeight) after(Pass::BackwardInput, cell.chunk);
        if (cell.pass != Pass::Backward && cell.pass != Pass::BackwardInput) continue;
        after(Pass::Forward, cell.chunk);
        if (cell.chunk + 1 < schedule.chunks) after(Pass::BackwardInput, cell.chunk + 1);
      }
  });
}

// Closed forms at unit costs (F = I = W = 1, transfers for nothing), exact. Idle time of the rank that waits longest;
// "step" counts from the first forward of all, "rank" from each rank's own.
struct ClosedForm {
  const char* name;
  const char* source;
  bool from_own_begin;
  double (*idle)(int p, int m, int v);
  int (*in_flight)(int p, int m, int v);  // of the rank that holds most, in chunks
  bool (*holds)(int p, int m, int v);
};
const ClosedForm closed_forms[] = {
    {"gpipe", "arXiv:1811.06965; (p-1)(F+B)", false, [](int p, int, int) { return 3.0 * (p - 1); },
     [](int, int m, int) { return m; }, [](int, int, int) { return true; }},
    {"1f1b", "arXiv:2104.04473; (p-1)(F+B)", false, [](int p, int, int) { return 3.0 * (p - 1); },
     [](int p, int m, int) { return std::min(m, p); }, [](int, int, int) { return true; }},
    {"interleaved", "arXiv:2104.04473; (p-1)(F+B) of one chunk", false, [](int p, int, int) { return 3.0 * (p - 1); },
     [](int p, int, int v) { return v == 1 ? p : (v - 1) * p + 2 * (p - 1) + 1; },
     [](int p, int m, int v) { return m % p == 0 && (v == 1 || m > p); }},
    {"looped-bfs", "arXiv:2211.05953; (p-1)(F+B) of one chunk", false, [](int p, int, int) { return 3.0 * (p - 1); },
     [](int, int m, int v) { return m * v; }, [](int p, int m, int) { return m >= p; }},
    {"zb-h1", "arXiv:2401.10241; (p-1)(F+I-W)", false, [](int p, int, int) { return 1.0 * (p - 1); },
     [](int p, int, int) { return p; }, [](int p, int m, int) { return m >= p; }},
    {"zb-h2", "arXiv:2401.10241; (p-1)(F+I-2W)", true, [](int, int, int) { return 0.0; },
     [](int p, int, int) { return 2 * p - 1; }, [](int p, int m, int) { return m >= 2 * p - 1; }},
    {"zb-v", "arXiv:2401.10241; none, p micro-batches of two chunks", true, [](int, int, int) { return 0.0; },
     [](int p, int, int) { return 2 * p; }, [](int p, int m, int) { return m >= 2 * p - 1; }},
    // The paper's half and two thirds of 1F1B's (p-1)(F+B), of two chunks 6(p-1), or one pass less.
    {"v-half", "arXiv:2405.15362; half of 1F1B's", true,
     [](int p, int, int) { return p == 1 ? 0.0 : 3.0 * (p - 1) - (p % 2 == 1 || p < 6 ? 1 : 0); },
     [](int p, int, int) { return 2 * ((p + 2) / 2); }, [](int p, int m, int) { return m >= 2 * p; }},
    {"v-min", "arXiv:2405.15362; two thirds of 1F1B's", true,
     [](int p, int, int) { return p == 1   ? 0.0
                                  : p == 3 ? 5.0
                                           : 4.0 * (p - 1) - 1; },
     [](int p, int, int) { return 2 * ((p + 4) / 3); }, [](int p, int m, int) { return m >= 2 * p; }},
    {"dualpipe-v", "DeepSeek-AI's table, PP = 2p stages; (PP/2-1)(F&B + B - 3W), PP+1 chunks", false,
     [](int p, int, int) { return 2.0 * (p - 1); }, [](int p, int, int) { return 2 * p + 1; },
     [](int p, int m, int) { return m >= 2 * p; }},
};

TEST(Schedules, BubbleAndActivationsInFlightAreThoseOfThePapers) {
  for (const ClosedForm& form : closed_forms) {
    const Generator& generator = *find_generator(form.name);
    int compared = 0;
    for (uint16_t v = generator.fewest_chunks; v <= std::min<int>(generator.most_chunks, 4); ++v)
      for (uint16_t p = 1; p <= 8; ++p)
        for (uint16_t m = 1; m <= 64; ++m) {
          if (!form.holds(p, m, v)) continue;
          const Schedule schedule = make_schedule(form.name, {.ranks = p, .micro_batches = m, .chunks_per_rank = v});
          const CellTimes times = unit_times(schedule);
          const double took = form.from_own_begin ? longest_rank(times) : makespan(times);
          EXPECT_EQ(took - 3.0 * m * v, form.idle(p, m, v)) << form.name << " p " << p << " m " << m << " v " << v;
          EXPECT_EQ(most_in_flight(schedule), form.in_flight(p, m, v))
              << form.name << " p " << p << " m " << m << " v " << v;
          ++compared;
        }
    EXPECT_GT(compared, 50) << form.name;
  }
}

// DeepSeek-AI's table of DualPipeV (github.com/deepseek-ai/DualPipe), for other costs than equal ones: B is a whole
// backward, F&B a forward and a backward that run together, and PP the stages, two a rank.
TEST(DualpipeV, LosesTheBubbleOfItsTable) {
  for (const PassCosts& costs : {PassCosts{1, 1, 1, 0}, PassCosts{2, 2, 1, 0}, PassCosts{3, 3, 2, 0}})
    for (const double saved : {0.0, 0.25, 0.5})
      for (uint16_t p = 2; p <= 8; ++p)
        for (uint16_t m = static_cast<uint16_t>(2 * p); m <= 40; ++m) {
          const Schedule schedule = make_schedule("dualpipe-v", {.ranks = p, .micro_batches = m, .chunks_per_rank = 2});
          const double end = makespan(time_cells(schedule, std::span(&costs, 1), saved));
          const double backward = costs.backward_input + costs.backward_weight;
          const double together = costs.forward + backward - saved;
          double most_idle = 0;  // the ranks' work differs: later ones run more pairs together
          for (const auto& cells : schedule.by_rank) {
            const auto pairs = static_cast<double>(std::ranges::count(cells, true, &Cell::with_next));
            most_idle = std::max(most_idle, end - (2 * m * (costs.forward + backward) - pairs * saved));
          }
          EXPECT_DOUBLE_EQ(most_idle, (p - 1) * (together + backward - 3 * costs.backward_weight))
              << "p " << p << " m " << m << " saved " << saved;
        }
}

TEST(Schedules, InterleavedOfOneChunkIs1f1b) {
  for (uint16_t p = 1; p <= 8; ++p)
    for (uint16_t m = 1; m <= 32; ++m)
      EXPECT_EQ(make_schedule("interleaved", {.ranks = p, .micro_batches = m, .chunks_per_rank = 1}).by_rank,
                make_schedule("1f1b", {.ranks = p, .micro_batches = m}).by_rank);
}

TEST(OneForwardOneBackward, WarmsUpWithAForwardForEachLaterRank) {
  for (const uint16_t ranks : std::initializer_list<uint16_t>{1, 2, 3, 4, 8})
    for (const uint16_t micro_batches : std::initializer_list<uint16_t>{1, 2, 3, 4, 8, 64}) {
      const Schedule schedule = one_forward_one_backward({.ranks = ranks, .micro_batches = micro_batches});
      for (int r = 0; r < ranks; ++r) {
        const auto& cells = schedule.by_rank[static_cast<size_t>(r)];
        const auto before = std::ranges::find(cells, Pass::Backward, &Cell::pass) - cells.begin();
        // p-1-r forwards to warm up, and the one that the first backward follows.
        EXPECT_EQ(before, std::min<int>(micro_batches, ranks - 1 - r + 1)) << ranks << ' ' << micro_batches << ' ' << r;
      }
    }
}

TEST(OneForwardOneBackward, HoldsNoMoreMicroBatchesThanStagesRemain) {
  for (const uint16_t ranks : std::initializer_list<uint16_t>{1, 2, 3, 4, 8})
    for (const uint16_t micro_batches : std::initializer_list<uint16_t>{1, 2, 3, 4, 8, 64}) {
      const Schedule schedule = one_forward_one_backward({.ranks = ranks, .micro_batches = micro_batches});
      for (int r = 0; r < ranks; ++r)
        EXPECT_EQ(most_in_flight(schedule.by_rank[static_cast<size_t>(r)]), std::min<int>(micro_batches, ranks - r));
    }
}

TEST(Gpipe, HoldsAllMicroBatches) {
  const Schedule schedule = gpipe({.ranks = 4, .micro_batches = 16});
  for (const auto& cells : schedule.by_rank) EXPECT_EQ(most_in_flight(cells), 16);
}

TEST(Schedules, AreFoundByName) {
  EXPECT_EQ(schedule_names(), (std::vector<std::string>{"gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2",
                                                        "zb-v", "v-half", "v-min", "dualpipe-v"}));
  for (const std::string& name : schedule_names()) {
    EXPECT_NE(find_generator(name), nullptr);
    EXPECT_EQ(make_schedule(name, {.ranks = 2, .micro_batches = 2, .chunks_per_rank = 0}).name, name);
  }
  EXPECT_EQ(find_generator("2f2b"), nullptr);
  EXPECT_THROW(make_schedule("2f2b", {.ranks = 2, .micro_batches = 2, .chunks_per_rank = 0}), InvariantError);
  EXPECT_THROW(make_schedule("1f1b", {.ranks = 0, .micro_batches = 2, .chunks_per_rank = 0}), InvariantError);
  EXPECT_THROW(make_schedule("1f1b", {.ranks = 2, .micro_batches = 0, .chunks_per_rank = 0}), InvariantError);
}

// A column is the time of one forward, input part or weight part; a whole backward takes two; `..` is idle. Later
// chunks of a rank are written in small letters, + joins cells that run together.
std::string picture(const Schedule& schedule) {
  const CellTimes times = unit_times(schedule);
  std::string text;
  for (size_t r = 0; r < schedule.by_rank.size(); ++r) {
    std::vector<std::string> columns(static_cast<size_t>(makespan(times)), ".. ");
    size_t next = 0;
    for (size_t k = 0; k < schedule.by_rank[r].size(); ++k) {
      const Cell& cell = schedule.by_rank[r][k];
      next = std::max(next, static_cast<size_t>(times[r][k].begin));
      const bool first_chunk = cell.chunk < schedule.by_rank.size();
      columns[next++] =
          fmt::format("{}{}{}", first_chunk ? letter(cell.pass) : static_cast<char>(std::tolower(letter(cell.pass))),
                      cell.micro_batch, cell.with_next ? '+' : ' ');
      if (cell.pass == Pass::Backward) columns[next++] = "-- ";
    }
    std::string line = fmt::format("rank {}  {}", r, fmt::join(columns, ""));
    line.pop_back();
    text += line + "\n";
  }
  return text;
}

// Printed by the same code that the test of the bubble runs; to change a page, copy what this test says.
TEST(Schedules, LookAsInTheirPictures) {
  std::ifstream page(std::string(TEST_DATA_DIR) + "/../docs/schedules.md");
  ASSERT_TRUE(page.good());
  std::stringstream text;
  text << page.rdbuf();
  for (const std::string& name : schedule_names())
    EXPECT_THAT(
        text.str(),
        testing::HasSubstr(picture(make_schedule(
            name,
            {.ranks = static_cast<uint16_t>(name == "dualpipe-v" ? 2 : 4), .micro_batches = 4, .chunks_per_rank = 0}))))
        << name;
}

}  // namespace
}  // namespace shardpipe
