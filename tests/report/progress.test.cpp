// What a person sees: a terminal is played back character by character, so a line that wraps or remains is found.
#include "report/progress.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "report/table.h"

namespace shardpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A screen that knows text, line break, return and erase-to-end, and counts wraps.
struct Screen {
  explicit Screen(size_t columns_) : columns(columns_) {}
  size_t columns;
  std::vector<std::string> lines = {""};
  size_t cursor = 0, wraps = 0;

  void play(std::string_view text) {
    for (; !text.empty(); text.remove_prefix(1)) {
      if (text.starts_with("\x1b[K")) {
        lines.back().resize(std::min(cursor, lines.back().size()));
        text.remove_prefix(2);
      } else if (text.front() == '\r') {
        cursor = 0;
      } else if (text.front() == '\n') {
        lines.emplace_back(), cursor = 0;
      } else {
        if (cursor == columns) lines.emplace_back(), cursor = 0, ++wraps;
        lines.back().resize(std::max(lines.back().size(), cursor + 1), ' ');
        lines.back()[cursor++] = text.front();
      }
    }
  }
};

ProgressSink terminal(Screen& screen) {
  return {.write = [&](std::string_view text) { screen.play(text); },
          .is_terminal = true,
          .columns = [&] { return static_cast<int>(screen.columns); }};
}

ProgressSink file(std::string& content) {
  return {.write = [&](std::string_view text) { content += text; }, .is_terminal = false};
}

ProgressState typical(int64_t step) {
  return {.step = step,
          .loss = 5.125,
          .val_loss = 5.25,
          .tokens_per_second = 12345,
          .peak_bytes = 3 << 19,
          .seconds = 2.0 * static_cast<double>(step)};
}

TEST(Progress, ATerminalHasOneLineThatIsRedrawn) {
  Screen screen(80);
  Progress progress(1000, terminal(screen));
  for (int64_t step = 1; step <= 120; ++step) {
    progress.update(typical(step));
    ASSERT_EQ(screen.lines.size(), 1u);
  }
  EXPECT_EQ(screen.lines[0], "[=      ]  120/1000  loss 5.1250  val 5.2500  12.3 k tok/s  1.50 MiB  ETA 29:20");
  progress.finish();
  EXPECT_EQ(screen.lines.size(), 2u);
  EXPECT_EQ(screen.lines[1], "");
}

TEST(Progress, NeverWrapsWhateverTheWidthAndTheState) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<ProgressState> states = {
      {},
      typical(1),
      typical(999),
      {.step = 999'999'999,
       .loss = 1e300,
       .val_loss = -1e300,
       .tokens_per_second = 1e300,
       .peak_bytes = ~uint64_t{0},
       .seconds = 1e300},
      {.step = 1, .loss = nan, .val_loss = nan, .tokens_per_second = nan, .peak_bytes = 1, .seconds = nan}};
  for (const size_t columns : {1u, 2u, 10u, 20u, 40u, 60u, 79u, 80u, 81u, 200u}) {
    Screen screen(columns);
    Progress progress(1'000'000'000, terminal(screen));
    for (const ProgressState& state : states) {
      progress.update(state);
      progress.finish();
    }
    EXPECT_EQ(screen.wraps, 0u) << columns << " columns";
    for (const std::string& line : screen.lines) EXPECT_LT(line.size(), columns);
  }
}

TEST(Progress, ANarrowTerminalKeepsWhatMattersMost) {
  EXPECT_EQ(progress_line(typical(120), 1000, 0, 39, true), "step 120/1000  loss 5.1250  ETA 29:20");
  EXPECT_EQ(progress_line(typical(120), 1000, 0, 30, true), "step 120/1000  loss 5.1250");
  EXPECT_EQ(progress_line(typical(120), 1000, 0, 15, true), "step 120/1000");
  EXPECT_EQ(progress_line(typical(120), 1000, 0, 5, true), "");
  EXPECT_THAT(progress_line(typical(120), 1000, 0, 110, true), HasSubstr("1.50 MiB"));
}

TEST(Progress, TheBarIsAsLongAsTheRunIsDone) {
  const auto filled = [](int64_t step) {
    const std::string line = progress_line(typical(step), 1000, 0, 150, true);
    EXPECT_EQ(line.find(']'), 31u);
    return std::ranges::count(line, '=');
  };
  EXPECT_EQ(filled(0), 0);
  EXPECT_EQ(filled(500), 15);
  EXPECT_EQ(filled(1000), 30);
}

TEST(Progress, AShorterLineLeavesNothingOfALongerOne) {
  Screen screen(80);
  Progress progress(1000, terminal(screen));
  progress.update(
      {.step = 998, .loss = 1e-9, .val_loss = 123.5, .tokens_per_second = 123456, .peak_bytes = 1023, .seconds = 1});
  progress.update({.step = 1000, .loss = 1, .tokens_per_second = 1, .seconds = 9});
  EXPECT_THAT(screen.lines[0], Not(HasSubstr("val")));
  EXPECT_THAT(screen.lines[0], testing::EndsWith("1 tok/s  0:09"));
}

TEST(Progress, FollowsAWindowThatBecomesNarrower) {
  Screen screen(100);
  Progress progress(1000, terminal(screen));
  progress.update(typical(1));
  screen.columns = 40;
  progress.update(typical(2));
  EXPECT_LT(screen.lines[0].size(), 40u);
}

TEST(Progress, AFastRunIsNotRedrawnAtEveryStep) {
  size_t writes = 0;
  Progress progress(100'000, {.write = [&](std::string_view) { ++writes; }, .is_terminal = true});
  for (int64_t step = 1; step <= 100'000; ++step)
    progress.update({.step = step, .seconds = static_cast<double>(step) / 10'000});
  EXPECT_GE(writes, 50u);
  EXPECT_LE(writes, 103u);  // ten a second, for ten seconds
}

TEST(Progress, FinishShowsAStateThatWasNotDrawn) {
  Screen screen(80);
  Progress progress(100'000, terminal(screen));
  for (const int64_t step : {1, 2, 3}) progress.update({.step = step, .seconds = 0.001 * static_cast<double>(step)});
  EXPECT_THAT(screen.lines[0], HasSubstr("]  1/"));
  progress.finish();
  EXPECT_THAT(screen.lines[0], HasSubstr("]  3/"));
  progress.finish();
  EXPECT_EQ(screen.lines.size(), 2u) << "finishing twice is finishing once";
}

TEST(Progress, AnAbandonedRunLeavesItsLineAlone) {
  Screen screen(80);
  { Progress(10, terminal(screen)).update(typical(3)); }
  screen.play("error: …");
  EXPECT_THAT(screen.lines[0], HasSubstr("]  3/10"));
  EXPECT_EQ(screen.lines[1], "error: …");
}

TEST(Progress, AFileGetsSomeTwentyPlainLinesAndTheLast) {
  for (const int64_t steps : {1, 3, 20, 21, 99, 1000, 12345}) {
    std::string content;
    Progress progress(steps, file(content));
    for (int64_t step = 1; step <= steps; ++step) progress.update(typical(step));
    progress.finish();
    const auto lines = std::ranges::count(content, '\n');
    EXPECT_LE(lines, 22) << steps;
    EXPECT_GE(lines, std::min<int64_t>(steps, 11)) << steps;
    EXPECT_THAT(content, testing::StartsWith("step 1/" + std::to_string(steps) + "  loss 5.1250"));
    const std::string last = content.substr(content.rfind('\n', content.size() - 2) + 1);
    EXPECT_THAT(last, HasSubstr("step " + std::to_string(steps) + "/" + std::to_string(steps)));
    EXPECT_THAT(content, Not(testing::ContainsRegex("[\r\x1b]")));
  }
}

TEST(Progress, AnInterruptedRunInAFileEndsWithItsLastStep) {
  std::string content;
  Progress progress(1000, file(content));
  for (int64_t step = 1; step <= 77; ++step) progress.update(typical(step));
  progress.finish();
  EXPECT_THAT(content, HasSubstr("step 77/1000"));
}

TEST(Progress, TimeLeftCountsOnlyTheStepsOfThisRun) {
  const ProgressState state{.step = 110, .seconds = 20};  // ten steps in 20 seconds, 90 to go
  EXPECT_THAT(progress_line(state, 200, 100, 80, false), HasSubstr("ETA 3:00"));
}

TEST(Progress, ARunWithoutAStepShowsNothing) {
  Screen screen(80);
  { const Progress progress(10, terminal(screen)); }
  EXPECT_EQ(screen.lines, std::vector<std::string>{""});
}

}  // namespace
}  // namespace shardpipe
