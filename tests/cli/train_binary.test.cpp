// Commands that are right, with the real binary: what --dry-run draws, and that a run's config.toml is an input again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "cli/run_binary.h"

namespace shardpipe {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Words = std::vector<std::string>;

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(DryRun, DrawsTablesOfAboutAHundredColumnsAndWritesNothing) {
  for (const Words& layout : std::vector<Words>{{"--model", "gpt2-124m", "--pp", "4", "--dp", "2", "--zero", "3"},
                                                {"--model", "llama-8b", "--pp", "8", "--dp", "8", "--zero", "3"},
                                                {"--model", "gpt2-10m", "--pp", "3", "--dp", "7", "--zero", "2"},
                                                {"--model", "gpt2-tiny", "--out", "runs/a"}}) {
    const TemporaryFolder folder;
    Words words{"train", "--dry-run"};
    words.insert(words.end(), layout.begin(), layout.end());
    const Outcome outcome = run_binary(words, folder.path());
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.standard_error, "");
    EXPECT_THAT(everything_in(folder.path()), IsEmpty());
    for (const std::string& line : lines_of(outcome.standard_output)) {
      if (line.starts_with("warning: ")) continue;
      EXPECT_LE(std::ranges::count_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }), 101)
          << line;
    }
  }
}

// 4Ψ bytes of parameters and of gradients and 8Ψ of optimizer states, divided as the stage says: an untied stage's own.
TEST(DryRun, SaysWhichStageHoldsWhatAndHowMuch) {
  const TemporaryFolder folder;
  const Outcome outcome = run_binary({"train", "--dry-run", "--model", "gpt2-124m", "--untied", "--pp", "4", "--dp",
                                      "2", "--zero", "3", "--stages", "5,4,4,1"},
                                     folder.path());
  const Words lines = lines_of(outcome.standard_output);
  const auto row = std::ranges::find_if(lines, [](const std::string& line) { return line.starts_with("  2-3 "); });
  ASSERT_NE(row, lines.end()) << outcome.standard_output;
  std::istringstream cells(*row);
  Words found;
  for (std::string cell; cells >> cell;) found.push_back(cell);
  found.resize(12);
  // 4 layers of 7,087,872 parameters
  EXPECT_THAT(found,
              testing::ElementsAre("2-3", "1", "4:", "4…7", "28.4", "M", "54.1", "MiB", "54.1", "MiB", "108", "MiB"));
}

TEST(DryRun, LeavesOutWhatNoRankHasAnyOf) {
  const TemporaryFolder folder;
  const auto dry = [&](const char* zero) {
    return run_binary({"train", "--dry-run", "--model", "gpt2-tiny", "--dp", "2", "--zero", zero}, folder.path())
        .standard_output;
  };
  EXPECT_THAT(dry("0"), Not(HasSubstr("gathered parameters")));
  EXPECT_THAT(dry("3"), HasSubstr("gathered parameters"));
}

std::string digest_of(const Outcome& outcome) {
  const size_t at = outcome.standard_output.find("params_digest ");
  return at == std::string::npos ? "" : outcome.standard_output.substr(at, 14 + 32);
}

TEST(ConfigOfARun, TrainsTheSameModelOverOtherStages) {
  const TemporaryFolder folder;
  folder.write("corpus.txt", std::string(20'000, 'a') + std::string(20'000, 'b'));
  const Outcome first = run_binary(
      {"train", "--model", "gpt2-tiny", "--data", "corpus.txt", "--steps", "2", "--pp", "2", "--out", "runs/first"},
      folder.path());
  ASSERT_EQ(first.exit_code, 0) << first.standard_error;
  EXPECT_THAT(content_of(folder.path() / "runs/first/config.toml"), HasSubstr("\nstages = \"auto\"\n"));
  const Outcome second =
      run_binary({"train", "--config", "runs/first/config.toml", "--pp", "4", "--out", "runs/second"}, folder.path());
  ASSERT_EQ(second.exit_code, 0) << second.standard_error;
  EXPECT_EQ(digest_of(first).size(), 46U) << first.standard_output;
  EXPECT_EQ(digest_of(first), digest_of(second));
}

}  // namespace
}  // namespace shardpipe
