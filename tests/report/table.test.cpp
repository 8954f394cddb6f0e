#include "report/table.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace shardpipe {
namespace {

TEST(Table, NumbersStandAtTheRightAndNamesAtTheLeft) {
  EXPECT_EQ(to_text({.header = {"rank", "blocks", "parameters", "peak"},
                     .rows = {{"0", "embedding..1", "10.2 M", "1.50 MiB"}, {"10", "head", "-", "512 B"}}}),
            "rank  blocks        parameters      peak\n"
            "   0  embedding..1      10.2 M  1.50 MiB\n"
            "  10  head                   -     512 B\n");
}

TEST(Table, NoLineEndsInASpace) {
  EXPECT_EQ(to_text({.header = {"a", "note"}, .rows = {{"x", ""}, {"longer", "y"}}}),
            "a       note\n"
            "x\n"
            "longer  y\n");
}

TEST(Table, CountsCharactersNotBytes) {
  EXPECT_EQ(to_text({.header = {"ψ", "n"}, .rows = {{"größe", "1"}, {"size", "22"}}}),
            "ψ       n\n"
            "größe   1\n"
            "size   22\n");
}

TEST(Table, SignsPercentAndExponentsAreNumbersVersionsAndNamesAreNot) {
  const auto right = [](const char* cell) {
    return to_text({.header = {"a wide header"}, .rows = {{cell}}}).substr(14, 1) == " ";
  };
  for (const char* cell : {"1", "-1", "+.5", "1e-3", "1,024", "40 %", "40%", "1.50 MiB", "12.3 k tok/s"})
    EXPECT_TRUE(right(cell)) << cell;
  for (const char* cell : {"1f1b", "zb-h1", "gpt2", "-", "--", "", "e5", "2-stage", "."})
    EXPECT_FALSE(right(cell)) << cell;
}

TEST(Table, NoRowsIsAHeader) { EXPECT_EQ(to_text({.header = {"a", "b"}, .rows = {}}), "a  b\n"); }

TEST(Table, ARowOfAnotherLengthIsRefused) {
  EXPECT_THROW(to_text({.header = {"a", "b"}, .rows = {{"1"}}}), InvariantError);
}

TEST(Human, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(3 << 19), "1.50 MiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.00 MiB");
  EXPECT_EQ(human_bytes(uint64_t{150} << 30), "150 GiB");
  EXPECT_EQ(human_bytes(uint64_t{1023} << 30), "1023 GiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<uint64_t>::max()), "16.0 EiB");
}

TEST(Human, Counts) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(12), "12");
  EXPECT_EQ(human_count(12.34), "12.3");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(999.7), "1.00 k");
  EXPECT_EQ(human_count(10'239'000), "10.2 M");
  EXPECT_EQ(human_count(9'996), "10.0 k");
  EXPECT_EQ(human_count(999'600), "1.00 M");
  EXPECT_EQ(human_count(1.5e9), "1.50 G");
  EXPECT_EQ(human_count(-2000), "-2.00 k");
  EXPECT_EQ(human_count(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Human, Seconds) {
  EXPECT_EQ(human_seconds(0.4), "0:00");
  EXPECT_EQ(human_seconds(59.6), "1:00");
  EXPECT_EQ(human_seconds(3723), "1:02:03");
  EXPECT_EQ(human_seconds(2 * 86400 + 3 * 3600 + 4 * 60 + 5), "2d 03:04");
  EXPECT_EQ(human_seconds(-1), "-");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::infinity()), "-");
}

}  // namespace
}  // namespace shardpipe
