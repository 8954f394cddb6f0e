// A folder holds one run; what cannot be written is told, before the run where that can be known.
#include "report/run_folder.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace shardpipe {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

// `check` and the constructor must agree, and neither may leave anything behind.
void expect_refused(const fs::path& path, const std::string& reason) {
  const auto refused = AllOf(HasSubstr("--out " + path.string()), HasSubstr(reason), HasSubstr("allowed: "));
  EXPECT_THAT(refusal([&] { RunFolder::check(path); }), refused);
  EXPECT_THAT(refusal([&] { RunFolder(path, "x"); }), refused);
}

TEST(RunFolder, IsCreatedWithItsParentsAndHoldsTheConfiguration) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a/b/c/";
  RunFolder::check(path);
  EXPECT_TRUE(fs::is_empty(folder.path())) << "check creates nothing";
  const RunFolder run(path, "steps = 3\n");
  EXPECT_EQ(content_of(path / "config.toml"), "steps = 3\n");
}

TEST(RunFolder, AFolderWithOtherFilesIsTaken) {
  const TemporaryFolder folder;
  folder.write("notes.txt", "mine");
  const RunFolder run(folder.path(), "x");
  EXPECT_EQ(content_of(folder / "notes.txt"), "mine");
}

TEST(RunFolder, AFolderWithARunIsRefusedAndUntouched) {
  for (const char* name : {"config.toml", "metrics.jsonl", "summary.json"}) {
    const TemporaryFolder folder;
    folder.write(name, "of an earlier run");
    expect_refused(folder.path(), std::string("found another run in it (") + name + ")");
    EXPECT_EQ(content_of(folder / name), "of an earlier run");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
  }
}

TEST(RunFolder, OfTwoRunsOneGetsTheFolder) {
  const TemporaryFolder folder;
  const RunFolder first(folder / "run", "first");
  expect_refused(folder / "run", "found another run");
  EXPECT_EQ(content_of(folder / "run/config.toml"), "first");
}

TEST(RunFolder, WhatIsNoFolderIsRefused) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "content");
  expect_refused(file, "found a file");
  expect_refused(fs::path(file) / "below", file + " is no folder");
  expect_refused(fs::path(file) / "far/below", file + " is no folder");
  fs::create_symlink(folder / "nowhere", folder / "link");
  expect_refused(folder / "link", "found a link that points to nothing");
  expect_refused("", "found an empty name");
  EXPECT_EQ(content_of(file), "content");
  EXPECT_FALSE(fs::exists(folder / "nowhere"));
}

TEST(RunFolder, ALinkToAFolderIsAFolder) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "real");
  fs::create_directory_symlink(folder / "real", folder / "link");
  const RunFolder run(folder / "link", "x");
  EXPECT_EQ(content_of(folder / "real/config.toml"), "x");
}

TEST(RunFolder, AFolderWithoutWritePermissionIsRefused) {
  if (geteuid() == 0) {
    // The superuser may write into any folder but those that nobody can: /proc takes no new files.
    EXPECT_THAT(refusal([] { RunFolder("/proc/shardpipe", "x"); }),
                HasSubstr("--out /proc/shardpipe: found that it cannot be created"));
    EXPECT_THAT(refusal([] { RunFolder("/proc", "x"); }),
                HasSubstr("--out /proc: found that config.toml cannot be created"));
    return;
  }
  const TemporaryFolder folder;
  chmod(folder.path().c_str(), 0555);
  expect_refused(folder.path(), "cannot be written (Permission denied)");
  expect_refused(folder / "run", "cannot be written (Permission denied)");
  chmod(folder.path().c_str(), 0755);
}

TEST(Metrics, EachLineIsInTheFileWhenAppendReturns) {
  const TemporaryFolder folder;
  RunFolder run(folder / "run", "x");
  EXPECT_FALSE(fs::exists(folder / "run/metrics.jsonl"));
  run.append_metrics("{\"step\":1}");
  EXPECT_EQ(content_of(folder / "run/metrics.jsonl"), "{\"step\":1}\n");
  run.append_metrics("{\"step\":2}");
  EXPECT_EQ(content_of(folder / "run/metrics.jsonl"), "{\"step\":1}\n{\"step\":2}\n");
}

std::string failure(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "succeeded";
}

TEST(Metrics, AFullDiskIsAnError) {
  const TemporaryFolder folder;
  RunFolder run(folder / "run", "x");
  const fs::path file = folder / "run/metrics.jsonl";
  fs::create_symlink("/dev/full", file);
  const auto full = AllOf(HasSubstr(file.string()), HasSubstr("No space left on device"));
  EXPECT_THAT(failure([&] { run.append_metrics("{}"); }), full);
  EXPECT_THAT(failure([&] { run.append_metrics("{}"); }), full) << "and not only the first time";
}

// Files of at most so many bytes, for this process, until the end of the scope.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(WriteFileAtomically, AFailedWriteKeepsTheOldContentAndLeavesNothing) {
  const TemporaryFolder folder;
  RunFolder run(folder / "run", "x");
  run.write_file_atomically("summary.json", "old");
  {
    const FileSizeLimit limit(1000);
    EXPECT_THAT(failure([&] { run.write_file_atomically("summary.json", std::string(5000, 'n')); }),
                AllOf(HasSubstr((folder / "run/summary.json").string()), HasSubstr("File too large")));
  }
  EXPECT_EQ(content_of(folder / "run/summary.json"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "run"), {}), 2) << "config.toml and summary.json";
}

TEST(WriteFileAtomically, ReplacesWhatWasThere) {
  const TemporaryFolder folder;
  RunFolder run(folder / "run", "x");
  run.write_file_atomically("trace.json", std::string(100000, 'a'));
  run.write_file_atomically("trace.json", "b");
  EXPECT_EQ(content_of(folder / "run/trace.json"), "b");
}

TEST(WriteFileAtomically, AFolderThatIsGoneIsAnError) {
  const TemporaryFolder folder;
  RunFolder run(folder / "run", "x");
  fs::remove_all(folder / "run");
  EXPECT_THAT(failure([&] { run.write_file_atomically("summary.json", "s"); }), HasSubstr("No such file or directory"));
}

TEST(RunFolder, AConfigurationThatCannotBeWrittenLeavesTheFolderFree) {
  const TemporaryFolder folder;
  {
    const FileSizeLimit limit(1000);
    EXPECT_THAT(refusal([&] { RunFolder(folder / "run", std::string(5000, 'c')); }),
                HasSubstr("config.toml cannot be written (File too large)"));
  }
  const RunFolder run(folder / "run", "second try");
  EXPECT_EQ(content_of(folder / "run/config.toml"), "second try");
}

}  // namespace
}  // namespace shardpipe
