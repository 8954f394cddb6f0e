// What an ordinary terminal of 80 columns has room for: everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/progress.h"

namespace shardpipe {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

ProgressState state(int64_t step) {
  ProgressState state;
  state.step = step;
  state.loss = 2.3412;
  state.val_loss = 2.42;
  state.tokens_per_second = 12345;
  state.peak_bytes = uint64_t{3} << 29;
  state.seconds = 60;
  return state;
}

TEST(ProgressFields, AllStandBesideTheBarInEightyColumns) {
  for (const int64_t steps : {300, 3000}) {
    const std::string line = progress_line(state(steps / 2), steps, 0, 79, true);
    EXPECT_LE(line.size(), 79u);
    EXPECT_THAT(line, StartsWith("["));
    for (const char* field : {"loss 2.3412", "val 2.4200", "12.3 k tok/s", "1.50 GiB", "ETA 1:00"})
      EXPECT_THAT(line, HasSubstr(field));
    EXPECT_THAT(line, HasSubstr(std::to_string(steps / 2) + "/" + std::to_string(steps)));
  }
}

TEST(ProgressFields, PeakMemoryStaysWhenThereIsNoRoomForAll) {
  const std::string line = progress_line(state(500'000), 1'000'000, 0, 79, true);
  EXPECT_THAT(line, HasSubstr("1.50 GiB"));
  EXPECT_THAT(line, testing::Not(HasSubstr("val")));
}

TEST(ProgressFields, ALineIsNeverLongerThanItsColumnsAndHasABarFromSomeWidthOn) {
  bool had_bar = false;
  for (int columns = 0; columns <= 130; ++columns) {
    const std::string line = progress_line(state(150), 300, 0, columns, true);
    EXPECT_LE(line.size(), static_cast<size_t>(columns));
    const bool has_bar = line.starts_with("[");
    EXPECT_TRUE(has_bar || !had_bar) << columns;
    had_bar = has_bar;
  }
  EXPECT_TRUE(had_bar);
}

}  // namespace
}  // namespace shardpipe
