// `shardpipe matrix` as a person sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_binary.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(MatrixCommand, PrintsWhatRunsAndAFlagOfAnAxisLeavesOneValue) {
  const TemporaryFolder folder;
  const Outcome all = run_binary({"matrix"}, folder.path());
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_EQ(all.standard_error, "");
  EXPECT_THAT(all.standard_output, AllOf(HasSubstr("1f1b         60 of 60"), HasSubstr("2400 of 2400 cells run")));
  for (const std::string& line : Outcome{0, "", all.standard_output}.error_lines())
    EXPECT_LE(line.size(), 100u) << line;
  const Outcome one = run_binary({"matrix", "--zero", "3", "--schedule", "zb-v", "--offload", "params", "--precision",
                                  "bf16", "--recompute", "full", "--train"},
                                 folder.path());
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_THAT(one.standard_output, AllOf(HasSubstr("zb-v      1 of 1"), HasSubstr("trained 2 steps"),
                                         HasSubstr("1 of 1 cells run, and all of one precision and cadence")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(MatrixCommand, ARefusedCellIsExitCode1WithItsReasonAndTheNearestThatRuns) {
  const TemporaryFolder folder;
  const Outcome outcome = run_binary({"matrix", "--pp", "4", "--zero", "0", "--precision", "fp32"}, folder.path());
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.standard_output,
              AllOf(HasSubstr("20 refused: --pp 4 × 2 chunks a rank (--schedule zb-v): found 8 stages"),
                    HasSubstr("nearest that runs: --schedule gpipe"), HasSubstr("80 of 200 cells run")));
}

// What it does not go by it does not take.
TEST(MatrixCommand, DataAndAStageForEachRankAreRefused) {
  const TemporaryFolder folder;
  const Outcome data = run_binary({"matrix", "--data", "corpus.txt"}, folder.path());
  EXPECT_EQ(data.exit_code, 2);
  EXPECT_THAT(data.standard_error, HasSubstr("--data: found an unknown flag of matrix"));
  const Outcome zero = run_binary({"matrix", "--zero", "3,1"}, folder.path());
  EXPECT_EQ(zero.exit_code, 2);
  EXPECT_EQ(zero.standard_output, "");
  EXPECT_THAT(zero.standard_error,
              HasSubstr("--zero 3,1: found a stage for each pipeline rank, allowed of matrix: one"));
}

TEST(MatrixCommand, WrongFlagsAreToldLikeThoseOfTrain) {
  const TemporaryFolder folder;
  const Outcome outcome = run_binary({"matrix", "--out", "x", "--pp", "two", "--trian"}, folder.path());
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.standard_output, "");
  EXPECT_THAT(outcome.standard_error, AllOf(HasSubstr("--out: found an unknown flag of matrix"),
                                            HasSubstr("--pp: found 'two'"), HasSubstr("did you mean '--train'")));
  EXPECT_THAT(run_binary({"matrix", "--help"}, folder.path()).standard_output, Not(IsEmpty()));
}

}  // namespace
}  // namespace shardpipe
