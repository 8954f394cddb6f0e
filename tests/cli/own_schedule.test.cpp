// `--schedule file:PATH` with the real binary: what cannot be read, is no schedule, cannot run or does not fit the
// layout ends in exit code 2, a line a mistake, and nothing written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cli/run_binary.h"

namespace shardpipe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Words = std::vector<std::string>;

const std::string two_by_two =
    "# two ranks, two micro-batches\nschedule two by two\nchunks 2 loop\nrank 0 0F0 0F1 0B0 0B1\nrank 1 1F0 1B0 1F1 "
    "1B1\n";

void fill(const TemporaryFolder& folder) {
  folder.write("corpus.txt", std::string(100'000, 'a'));
  folder.write("good.schedule", two_by_two);
  folder.write("empty", "");
  folder.write("prose", "hello world\n");
  folder.write("hangs", "schedule a\nchunks 2 loop\nrank 0 0F0 0B0 0F1 0B1\nrank 1 1F0 1F1 1B0 1B1\n");
  folder.write("lacks", "schedule a\nchunks 2 loop\nrank 0 0F0 0F1 0B0\nrank 1 1B0 1F0 1F1 1B1\n");
  folder.write("bad.csv", "0F0,0F1,0B0,0B1\n1F0,1X0,1F1,1B1\n");
  std::filesystem::create_directory(folder / "folder");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
}

Outcome train(const TemporaryFolder& folder, const Words& arguments) {
  Words words{"train", "--model", "gpt2-tiny", "--data", "corpus.txt"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_binary(words, folder.path());
}

struct Wrong {
  std::string name;
  Words arguments;
  Words lines;  // of stderr, behind "shardpipe: "
};
void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }

class OwnSchedules : public testing::TestWithParam<Wrong> {};

TEST_P(OwnSchedules, ThatCannotRunEndInALineAMistakeAndWriteNothing) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(fill(folder));
  const auto before = everything_in(folder.path());
  const Outcome outcome = train(folder, GetParam().arguments);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.standard_output, "");
  EXPECT_EQ(everything_in(folder.path()), before);
  Words expected;
  for (const std::string& line : GetParam().lines) expected.push_back("shardpipe: " + line);
  EXPECT_EQ(outcome.error_lines(), expected);
}

Wrong of_file(const std::string& name, const std::string& path, const std::string& found) {
  return {name,
          {"--schedule", "file:" + path},
          {"--schedule file:" + path + ": found " + found + ", allowed: a readable file with a schedule"}};
}

INSTANTIATE_TEST_SUITE_P(Files, OwnSchedules,
                         testing::Values(of_file("Missing", "none", "no such file"),
                                         of_file("WithoutAName", "", "no such file"),
                                         of_file("Folder", "folder", "a folder"),
                                         of_file("NamedPipe", "pipe", "no regular file"),
                                         of_file("Endless", "/dev/zero", "no regular file")),
                         [](const auto& tested) { return tested.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Texts, OwnSchedules,
    testing::Values(
        Wrong{"Empty",
              {"--schedule", "file:empty"},
              {"empty: found no line 'schedule NAME', allowed: one", "empty: found no line 'chunks', allowed: one",
               "empty: found no line 'rank 0', allowed: one"}},
        Wrong{"Prose",
              {"--schedule", "file:prose"},
              {"prose:1:1: found 'hello', allowed: schedule NAME, chunks, micro-batches or rank 0, a line each",
               "prose: found no line 'schedule NAME', allowed: one", "prose: found no line 'chunks', allowed: one",
               "prose: found no line 'rank 0', allowed: one"}},
        Wrong{"Csv",
              {"--pp", "2", "--schedule", "file:bad.csv"},
              {"bad.csv:2: rank 1, cell 2: found '1X0', allowed: an action such as 0F3, 2SEND_F1 or 0UNSHARD, a pair "
               "(0F3;1B2)OVERLAP_F_B, or nothing"}},
        Wrong{"WithoutABackward",
              {"--pp", "2", "--schedule", "file:lacks"},
              {"lacks: rank 0: the backward of chunk 0 for micro-batch 1 is missing",
               "lacks: rank 1, cell 1: 1B0 stands before its forward 1F0, cell 2"}},
        Wrong{"ThatWaitsForEver",
              {"--pp", "2", "--schedule", "file:hangs"},
              {"hangs: rank 0, cell 2: rank 0 waits at 0B0 for rank 1's 1B0, which waits at 1F1 for rank 0's 0F1"}},
        Wrong{"BesideOtherMistakes",
              {"--pp", "2", "--schedule", "file:hangs", "--steps", "0"},
              {"hangs: rank 0, cell 2: rank 0 waits at 0B0 for rank 1's 1B0, which waits at 1F1 for rank 0's 0F1",
               "--steps: found 0, allowed: 1 to 1000000000000"}}),
    [](const auto& tested) { return tested.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Layouts, OwnSchedules,
    testing::Values(
        Wrong{"OfMoreRanks",
              {"--schedule", "file:good.schedule"},
              {"--pp 1: --schedule file:good.schedule is of 2 ranks; allowed: --pp 2"}},
        Wrong{"BesideChunks",
              {"--pp", "2", "--chunks", "1", "--schedule", "file:good.schedule"},
              {"--chunks: found 1 beside --schedule file:good.schedule, which places its 2 chunks itself; allowed: "
               "none"}},
        Wrong{"OfFewerMicroBatches",
              {"--pp", "2", "--global-batch-size", "3", "--schedule", "file:good.schedule"},
              {"--global-batch-size 3: found 3 micro-batches a rank, but --schedule file:good.schedule is of 2; "
               "--global-batch-size 2 would be"}},
        Wrong{"OfMoreMicroBatches",
              {"--pp", "2", "--dp", "2", "--micro-batch-size", "2", "--global-batch-size", "4", "--schedule",
               "file:good.schedule"},
              {"--global-batch-size 4: found 1 micro-batches a rank, but --schedule file:good.schedule is of 2; "
               "--global-batch-size 8 would be"}},
        Wrong{"OfMoreChunksThanBlocks",
              {"--pp", "4", "--schedule",
               std::string("file:") + TEST_DATA_DIR + "/schedules/torch/dualpipev_4rank_10mb.csv"},
              {std::string("--schedule file:") + TEST_DATA_DIR +
               "/schedules/torch/dualpipev_4rank_10mb.csv: found 8 chunks, but gpt2-tiny has 6 blocks (embedding + 4 "
               "layers + head), set by --layers; allowed: 1 to 6"}}),
    [](const auto& tested) { return tested.param.name; });

TEST(OwnSchedule, OfMoreThan64MiBIsRefused) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(fill(folder));
  std::filesystem::resize_file(folder.write("large", ""), (64 << 20) + 1);
  const Outcome outcome = train(folder, {"--schedule", "file:large"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.error_lines(), ElementsAre(HasSubstr("--schedule file:large: found more than 64 MiB, allowed")));
}

TEST(OwnSchedule, SetsTheBatchAndIsPrintedAsAConfigThatIsReadBack) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(fill(folder));
  const Outcome printed = train(folder, {"--pp", "2", "--schedule", "file:good.schedule", "--print-config"});
  ASSERT_EQ(printed.exit_code, 0) << printed.standard_error;
  EXPECT_THAT(printed.standard_output, HasSubstr("schedule = \"file:good.schedule\"\n"));
  EXPECT_THAT(printed.standard_output, HasSubstr("global-batch-size = 2\n"));
  folder.write("run.toml", printed.standard_output);
  const Outcome again = run_binary({"train", "--config", "run.toml", "--print-config"}, folder.path());
  EXPECT_EQ(again.exit_code, 0) << again.standard_error;
  EXPECT_EQ(again.standard_output, printed.standard_output);
}

TEST(OwnSchedule, TrainsToTheDigestOf1F1B) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(fill(folder));
  const auto digest = [&](const std::string& schedule) {
    const Outcome outcome = train(folder, {"--pp", "2", "--steps", "2", "--schedule", schedule});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.standard_error;
    const size_t at = outcome.standard_output.find("digest");
    return at == std::string::npos ? outcome.standard_output : outcome.standard_output.substr(at, 50);
  };
  EXPECT_EQ(digest("file:good.schedule"), digest("1f1b"));
}

}  // namespace
}  // namespace shardpipe
