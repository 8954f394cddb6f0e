#include "schedules/schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "test_paths.h"

namespace shardpipe {
namespace {

void for_each_schedule(const std::function<void(const Schedule&, int ranks, int micro_batches)>& visit) {
  for (const std::string& name : schedule_names())
    for (const uint16_t ranks : std::initializer_list<uint16_t>{1, 2, 3, 4, 6, 8})
      for (const uint16_t micro_batches : std::initializer_list<uint16_t>{1, 2, 3, 4, 5, 8, 16, 64}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks, {} micro-batches", name, ranks, micro_batches));
        visit(make_schedule(name, {.ranks = ranks, .micro_batches = micro_batches, .chunks_per_rank = 0}), ranks,
              micro_batches);
      }
}

// Ends of all cells when a forward takes 1, a backward 2 and a message nothing; every rank does its cells in order.
struct Timing {
  std::vector<std::vector<int>> ends;
  int total = 0;
};
Timing run(const Schedule& schedule) {
  constexpr int forward_cost = 1, backward_cost = 2;
  std::map<std::tuple<Pass, int, int>, int> ended;
  Timing result;
  result.ends.resize(schedule.by_rank.size());
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t r = 0; r < schedule.by_rank.size(); ++r) {
      while (result.ends[r].size() < schedule.by_rank[r].size()) {
        const Cell& cell = schedule.by_rank[r][result.ends[r].size()];
        const int chunk = cell.chunk, m = cell.micro_batch;
        int begin = result.ends[r].empty() ? 0 : result.ends[r].back();
        bool ready = true;
        const auto after = [&](Pass pass, int of) {
          const auto found = ended.find({pass, of, m});
          ready = ready && found != ended.end();
          if (found != ended.end()) begin = std::max(begin, found->second);
        };
        if (cell.pass == Pass::Forward) {
          if (chunk > 0) after(Pass::Forward, chunk - 1);
        } else {
          after(Pass::Forward, chunk);
          if (chunk + 1 < schedule.chunks) after(Pass::Backward, chunk + 1);
        }
        if (!ready) break;
        const int end = begin + (cell.pass == Pass::Forward ? forward_cost : backward_cost);
        ended[{cell.pass, chunk, m}] = end;
        result.ends[r].push_back(end);
        result.total = std::max(result.total, end);
        progress = true;
      }
    }
  }
  return result;
}

TEST(Schedules, EveryCellIsThereOnceOnTheRankOfItsChunk) {
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
    EXPECT_EQ(seen.size(), 2u * schedule.chunks * static_cast<size_t>(micro_batches));
  });
}

TEST(Schedules, BothPassesRunMicroBatchesInAscendingOrder) {
  for_each_schedule([](const Schedule& schedule, int, int) {
    for (const std::vector<Cell>& cells : schedule.by_rank)
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        int last = -1;
        for (const Cell& cell : cells) {
          if (cell.pass != pass) continue;
          EXPECT_GT(cell.micro_batch, last) << to_string(cell);
          last = cell.micro_batch;
        }
      }
  });
}

// (p-1)(F+B) idle on every rank; as a share of the step (p-1)/(m+p-1). Fewer micro-batches than ranks included.
TEST(Schedules, TheBubbleIsOneForwardAndBackwardForEachOtherRank) {
  for_each_schedule([](const Schedule& schedule, int ranks, int micro_batches) {
    const Timing ran = run(schedule);
    for (size_t r = 0; r < schedule.by_rank.size(); ++r) ASSERT_EQ(ran.ends[r].size(), schedule.by_rank[r].size());
    const int busy = micro_batches * (1 + 2);
    EXPECT_EQ(ran.total - busy, (ranks - 1) * (1 + 2));
    EXPECT_DOUBLE_EQ(static_cast<double>(ran.total - busy) / ran.total,
                     static_cast<double>(ranks - 1) / (micro_batches + ranks - 1));
  });
}

int most_in_flight(const std::vector<Cell>& cells) {
  int now = 0, most = 0;
  for (const Cell& cell : cells) most = std::max(most, now += cell.pass == Pass::Forward ? 1 : -1);
  return most;
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
  EXPECT_EQ(schedule_names(), (std::vector<std::string>{"gpipe", "1f1b"}));
  for (const std::string& name : schedule_names()) {
    EXPECT_NE(find_generator(name), nullptr);
    EXPECT_EQ(make_schedule(name, {.ranks = 2, .micro_batches = 2, .chunks_per_rank = 0}).name, name);
  }
  EXPECT_EQ(find_generator("2f2b"), nullptr);
  EXPECT_THROW(make_schedule("2f2b", {.ranks = 2, .micro_batches = 2, .chunks_per_rank = 0}), InvariantError);
  EXPECT_THROW(make_schedule("1f1b", {.ranks = 0, .micro_batches = 2, .chunks_per_rank = 0}), InvariantError);
  EXPECT_THROW(make_schedule("1f1b", {.ranks = 2, .micro_batches = 0, .chunks_per_rank = 0}), InvariantError);
}

// A column is the time of one forward; a backward takes two; `..` is idle.
std::string picture(const Schedule& schedule) {
  const Timing ran = run(schedule);
  std::string text;
  for (size_t r = 0; r < schedule.by_rank.size(); ++r) {
    std::vector<std::string> columns(static_cast<size_t>(ran.total), "..");
    for (size_t k = 0; k < schedule.by_rank[r].size(); ++k) {
      const Cell& cell = schedule.by_rank[r][k];
      const bool forward = cell.pass == Pass::Forward;
      const auto end = static_cast<size_t>(ran.ends[r][k]);
      columns[end - (forward ? 1 : 2)] = fmt::format("{}{}", forward ? 'F' : 'B', cell.micro_batch);
      if (!forward) columns[end - 1] = "--";
    }
    text += fmt::format("rank {}  {}\n", r, fmt::join(columns, " "));
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
    EXPECT_THAT(text.str(), testing::HasSubstr(
                                picture(make_schedule(name, {.ranks = 4, .micro_batches = 4, .chunks_per_rank = 0}))))
        << name;
}

}  // namespace
}  // namespace shardpipe
