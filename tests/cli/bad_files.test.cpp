// Files and folders that a run cannot use, with the real binary: exit code 2, a line a mistake that names the file,
// what was found and what is allowed, and nothing is written or changed. Flags are right here; those that are not are
// in bad_input.test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "cli/run_binary.h"

namespace shardpipe {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

using Words = std::vector<std::string>;

struct BadFile {
  std::string name;
  Words arguments;           // behind `train --model gpt2-tiny` (vocabulary 256, sequences of 64 tokens)
  std::vector<Words> lines;  // a list for each line of stderr, in order: the texts that it holds
};

void PrintTo(const BadFile& bad_file, std::ostream* out) { *out << bad_file.name; }

// What there is to go wrong with.
void fill(const TemporaryFolder& folder) {
  folder.write("corpus.txt", std::string(100'000, 'a'));
  folder.write("empty.txt", "");
  folder.write("64-bytes.txt", std::string(64, 'a'));
  folder.write("1001-bytes.bin", std::string(1001, '\0'));
  folder.write("1002-bytes.bin", std::string(1002, '\0'));
  folder.write("token-256.bin", std::string(1000, '\0') + std::string("\0\1", 2) + std::string(998, '\0'));
  folder.write("token-65536.bin", std::string(400, '\0') + std::string("\0\0\1\0", 4) + std::string(996, '\0'));
  folder.write("secret.txt", std::string(100'000, 'a'));
  folder.write("run/config.toml", "pp = 1\n");
  folder.write("ended/summary.json", "{}\n");
  std::filesystem::create_directory(folder.path() / "closed");
  std::filesystem::create_symlink("nowhere", folder.path() / "dangling");
  ASSERT_EQ(mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  ASSERT_EQ(chmod((folder.path() / "secret.txt").c_str(), 0), 0);
  ASSERT_EQ(chmod((folder.path() / "closed").c_str(), 0500), 0);
}

class BadFiles : public testing::TestWithParam<BadFile> {};

TEST_P(BadFiles, EndInOneClearLineEachAndWriteNothing) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(fill(folder));
  const auto before = everything_in(folder.path());
  Words words{"train", "--model", "gpt2-tiny"};
  words.insert(words.end(), GetParam().arguments.begin(), GetParam().arguments.end());

  const Outcome outcome = run_binary(words, folder.path(), bound_by_permissions());

  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.standard_output, "");
  EXPECT_EQ(everything_in(folder.path()), before);
  const Words lines = outcome.error_lines();
  EXPECT_THAT(lines, Each(StartsWith("shardpipe: --")));
  EXPECT_THAT(lines, Each(HasSubstr("allowed")));
  ASSERT_EQ(lines.size(), GetParam().lines.size()) << outcome.standard_error;
  for (size_t i = 0; i < lines.size(); ++i)
    for (const std::string& text : GetParam().lines[i]) EXPECT_THAT(lines[i], HasSubstr(text));
}

std::string name_of(const testing::TestParamInfo<BadFile>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Data, BadFiles,
    testing::Values(
        BadFile{"Missing", {"--data", "none.txt"}, {{"--data none.txt", "No such file"}}},
        BadFile{"BelowAFile", {"--data", "corpus.txt/more"}, {{"--data corpus.txt/more", "Not a directory"}}},
        BadFile{"Empty", {"--data", "empty.txt"}, {{"--data empty.txt", "it is empty"}}},
        BadFile{"Folder", {"--data", "run"}, {{"--data run", "it is a folder"}}},
        BadFile{"NamedPipe", {"--data", "pipe"}, {{"--data pipe", "not a regular file"}}},
        BadFile{"Device", {"--data", "/dev/zero"}, {{"--data /dev/zero", "not a regular file"}}},
        BadFile{"WithoutPermission", {"--data", "secret.txt"}, {{"--data secret.txt", "Permission denied"}}},
        BadFile{"LinkToNothing", {"--data", "dangling"}, {{"--data dangling", "No such file"}}},
        BadFile{"ShorterThanOneWindow",
                {"--data", "64-bytes.txt"},
                {{"--data 64-bytes.txt", "found 64 tokens", "at least 65", "--seq-len"}}},
        BadFile{"ManyFilesShorterThanOneWindow",
                {"--data", "1001-bytes.bin,64-bytes.txt", "--seq-len", "2000"},
                {{"1001-bytes.bin,64-bytes.txt", "found 1065 tokens", "at least 2001"}}},
        BadFile{"OddBytesOfUint16",
                {"--data-format", "uint16", "--data", "1001-bytes.bin"},
                {{"--data 1001-bytes.bin", "found 1001 bytes", "uint16", "a multiple of 2"}}},
        BadFile{"BytesOfUint32ThatFourDoesNotDivide",
                {"--data-format", "uint32", "--data", "1002-bytes.bin"},
                {{"--data 1002-bytes.bin", "found 1002 bytes", "uint32", "a multiple of 4"}}},
        BadFile{"Uint16TokenBeyondTheVocabulary",
                {"--data-format", "uint16", "--data", "token-256.bin"},
                {{"--data token-256.bin", "found token 256 at byte 1000", "less than --vocab-size 256"}}},
        BadFile{"Uint32TokenBeyondTheVocabulary",
                {"--data-format", "uint32", "--data", "token-65536.bin", "--vocab-size", "65536"},
                {{"--data token-65536.bin", "found token 65536 at byte 400", "less than --vocab-size 65536"}}},
        BadFile{"ByteBeyondTheVocabulary",
                {"--data", "corpus.txt", "--vocab-size", "97"},
                {{"--data corpus.txt", "found token 97 at byte 0", "less than --vocab-size 97"}}},
        BadFile{"NothingLeftToTrainOn",
                {"--data", "corpus.txt", "--val-fraction", "0.9999"},
                {{"--val-fraction 0.9999", "--seq-len 64", "100000 tokens"}}}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Out, BadFiles,
    testing::Values(
        BadFile{"HoldsARun", {"--data", "corpus.txt", "--out", "run"}, {{"--out run", "another run", "config.toml"}}},
        BadFile{"HoldsTheSummaryOfARun",
                {"--data", "corpus.txt", "--out", "ended"},
                {{"--out ended", "another run", "summary.json"}}},
        BadFile{"IsAFile", {"--data", "corpus.txt", "--out", "corpus.txt"}, {{"--out corpus.txt", "found a file"}}},
        BadFile{"BelowAFile",
                {"--data", "corpus.txt", "--out", "corpus.txt/run/a"},
                {{"--out corpus.txt/run/a", "corpus.txt is no folder"}}},
        BadFile{"IsALinkToNothing",
                {"--data", "corpus.txt", "--out", "dangling"},
                {{"--out dangling", "a link that points to nothing"}}},
        BadFile{"ReadOnly",
                {"--data", "corpus.txt", "--out", "closed"},
                {{"--out closed", "cannot be written", "Permission denied"}}},
        BadFile{"BelowAReadOnlyFolder",
                {"--data", "corpus.txt", "--out", "closed/run/a"},
                {{"--out closed/run/a", "closed cannot be written", "Permission denied"}}},
        BadFile{"WhereNobodyCanMakeFolders",
                {"--data", "corpus.txt", "--out", "/proc/run"},
                {{"--out /proc/run", "cannot be"}}}),
    name_of);

BadFile offload_to(const std::string& name, const std::string& folder, const Words& line) {
  return {name, {"--data", "corpus.txt", "--offload", "optimizer", "--offload-to", "nvme:" + folder}, {line}};
}
INSTANTIATE_TEST_SUITE_P(
    Offload, BadFiles,
    testing::Values(offload_to("Missing", "none",
                               {"--offload-to nvme:none: found no such folder", "allowed: a folder"}),
                    offload_to("IsAFile", "corpus.txt", {"--offload-to nvme:corpus.txt: found a file"}),
                    offload_to("ReadOnly", "closed", {"--offload-to nvme:closed: found Permission denied"}),
                    BadFile{"WithOtherMistakes",
                            {"--data", "none.txt", "--out", "run", "--offload", "params", "--offload-to", "nvme:none"},
                            {{"--data none.txt"}, {"--out run"}, {"--offload-to nvme:none"}}}),
    name_of);

// 4 MB of optimizer states into a disk of 1 MiB: said before the first step, and nothing is left there.
TEST(OffloadFolder, WithoutRoomIsRefusedWithWhatIsFreeAndWhatIsNeeded) {
  const TemporaryFolder folder;
  fill(folder);
  std::filesystem::create_directory(folder / "small");
  const std::string mounted = "mount -t tmpfs -o size=1m none small && exec \"$0\" \"$@\"";
  const Outcome outcome =
      run_binary({"train", "--model", "gpt2-tiny", "--hidden", "128", "--data", "corpus.txt", "--offload", "optimizer",
                  "--offload-to", "nvme:small"},
                 folder.path(), {"/usr/bin/unshare", "--mount", "--map-root-user", "/bin/sh", "-c", mounted});
  if (outcome.standard_error.starts_with("unshare:") || outcome.standard_error.starts_with("mount:"))
    GTEST_SKIP() << outcome.standard_error;
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.standard_error,
              testing::AllOf(HasSubstr("--offload-to nvme:small: found 1.00 MiB free there"), HasSubstr("allowed: ")));
}

// What goes unsaid would be believed: that memory is saved.
TEST(OffloadFolder, InMemoryWarns) {
  struct statfs status {};
  if (statfs("/dev/shm", &status) != 0 || status.f_type != TMPFS_MAGIC || access("/dev/shm", W_OK) != 0)
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  const TemporaryFolder folder;
  fill(folder);
  const Outcome outcome = run_binary({"train", "--model", "gpt2-tiny", "--data", "corpus.txt", "--steps", "1",
                                      "--offload", "optimizer", "--offload-to", "nvme:/dev/shm"},
                                     folder.path());
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.standard_error, HasSubstr("warning: /dev/shm lies in memory (tmpfs)"));
}

// Files are looked at once all flags are right; then all that is wrong with them is told.
INSTANTIATE_TEST_SUITE_P(Several, BadFiles,
                         testing::Values(BadFile{"FilesAndOut",
                                                 {"--data", "none.txt,corpus.txt,empty.txt", "--data", "run", "--out",
                                                  "run"},
                                                 {{"--data none.txt", "No such file"},
                                                  {"--data empty.txt", "it is empty"},
                                                  {"--data run", "it is a folder"},
                                                  {"--out run", "another run"}}},
                                         BadFile{"FlagsBeforeFiles",
                                                 {"--data", "none.txt", "--out", "run", "--pp", "9", "--lr", "nan"},
                                                 {{"--lr: found nan"}, {"--pp: found 9 stages"}}}),
                         name_of);

}  // namespace
}  // namespace shardpipe
