// Runs as a person starts them: what the binary leaves in --out, what it says, and how it ends.
#include "train/run.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/run_binary.h"

namespace shardpipe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::UnorderedElementsAre;

using Json = nlohmann::json;
using Words = std::vector<std::string>;

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;
}

class Run : public testing::Test {
 protected:
  Run() {
    std::string text;
    for (int i = 0; i < 4000; ++i) text += "line " + std::to_string(i * i % 977) + " of a text\n";
    folder_.write("corpus.txt", text);
  }

  // A model that trains a step in about a millisecond, on two stages and two replicas.
  static Words arguments(const Words& more = {}) {
    Words words = {"train",      "--model",
                   "gpt2-tiny",  "--layers",
                   "2",          "--hidden",
                   "16",         "--ffn",
                   "32",         "--heads",
                   "2",          "--kv-heads",
                   "2",          "--seq-len",
                   "16",         "--data",
                   "corpus.txt", "--pp",
                   "2",          "--dp",
                   "2",          "--zero",
                   "3",          "--global-batch-size",
                   "8",          "--eval-sequences",
                   "8",          "--out",
                   "run"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Outcome run(const Words& more) const { return run_binary(arguments(more), folder_.path()); }
  Json summary() const { return Json::parse(read_file(folder_.path() / "run/summary.json")); }
  std::vector<Json> metrics() const {
    std::istringstream text(read_file(folder_.path() / "run/metrics.jsonl"));
    std::vector<Json> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  TemporaryFolder folder_;
};

TEST_F(Run, WritesALineAStepAndASummary) {
  const Outcome outcome = run({"--steps", "6", "--eval-every", "3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.standard_error;

  const std::vector<Json> lines = metrics();
  ASSERT_THAT(lines, SizeIs(6));
  std::map<std::string, uint64_t> wire_bytes;
  for (size_t k = 0; k < 6; ++k) {
    const Json& line = lines[k];
    EXPECT_THAT(keys_of(line),
                UnorderedElementsAre("step", "loss", "grad_norm", "lr", "tokens", "seconds", "tokens_per_second", "mfu",
                                     "peak_bytes", "wire_bytes", "loss_scale", "skipped", "val_loss"));
    EXPECT_EQ(line.at("step"), k + 1);
    EXPECT_EQ(line.at("tokens"), 8 * 16);
    EXPECT_TRUE(line.at("loss") > 1 && line.at("loss") < 10) << line;
    EXPECT_GT(line.at("grad_norm"), 0);
    EXPECT_GT(line.at("lr"), 0);
    EXPECT_EQ(line.at("skipped"), false);
    EXPECT_THAT(line.at("peak_bytes"), SizeIs(4));
    EXPECT_EQ(line.at("val_loss").is_number(), k == 2 || k == 5);
    for (const auto& [kind, bytes] : line.at("wire_bytes").items()) wire_bytes[kind] += bytes.get<uint64_t>();
  }
  EXPECT_LT(lines[5].at("val_loss"), lines[2].at("val_loss"));

  const Json all = summary();
  EXPECT_THAT(keys_of(all),
              UnorderedElementsAre("steps", "tokens", "final_loss", "val_loss", "params_digest", "skipped_steps",
                                   "peak_bytes", "planned_peak_bytes", "wire_bytes", "store_bytes", "fetched_bytes",
                                   "offloaded_bytes", "cpu_seconds", "seconds", "interrupted", "layout"));
  EXPECT_EQ(all.at("steps"), 6);
  EXPECT_EQ(all.at("tokens"), 6 * 8 * 16);
  EXPECT_EQ(all.at("final_loss"), lines[5].at("loss"));
  EXPECT_EQ(all.at("val_loss"), lines[5].at("val_loss"));
  EXPECT_EQ(all.at("skipped_steps"), 0);
  EXPECT_EQ(all.at("interrupted"), false);
  EXPECT_EQ(all.at("peak_bytes"), all.at("planned_peak_bytes"));
  EXPECT_EQ(all.at("peak_bytes"), lines[5].at("peak_bytes"));
  EXPECT_GT(all.at("cpu_seconds"), 0);
  EXPECT_EQ(all.at("layout").at("pp"), 2);
  EXPECT_EQ(all.at("layout").at("dp"), 2);
  EXPECT_EQ(all.at("layout").at("zero"), 3);
  EXPECT_EQ(all.at("layout").at("schedule"), "1f1b");
  EXPECT_EQ(all.at("layout").at("stages").size(), 2u);
  EXPECT_THAT(outcome.standard_output, HasSubstr("params_digest " + all.at("params_digest").get<std::string>()));
  // What training sent is the steps'; evaluations send besides.
  for (const char* kind : {"reduce_scatter", "all_reduce"})
    EXPECT_EQ(all.at("wire_bytes").at(kind), wire_bytes.at(kind)) << kind;
  for (const char* kind : {"send", "all_gather", "scalars"})
    EXPECT_GT(all.at("wire_bytes").at(kind), wire_bytes.at(kind)) << kind;
}

TEST_F(Run, RepeatsFromItsOwnConfiguration) {
  ASSERT_EQ(run({"--steps", "4"}).exit_code, 0);
  const Outcome again = run_binary({"train", "--config", "run/config.toml", "--out", "again", "--pp", "1", "--zero",
                                    "1", "--reduce-every", "micro", "--stages", "auto"},
                                   folder_.path());
  ASSERT_EQ(again.exit_code, 0) << again.standard_error;
  EXPECT_EQ(Json::parse(read_file(folder_.path() / "again/summary.json")).at("params_digest"),
            summary().at("params_digest"));
}

TEST_F(Run, InTheFolderOfAnotherRunIsRefusedAndChangesNothing) {
  ASSERT_EQ(run({"--steps", "2"}).exit_code, 0);
  const auto before = everything_in(folder_.path());
  const Outcome second = run({"--steps", "3"});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.standard_error, HasSubstr("--out run: found another run in it"));
  EXPECT_EQ(everything_in(folder_.path()), before);
}

TEST_F(Run, WritesATraceWhereOneIsAskedFor) {
  ASSERT_EQ(run({"--steps", "2", "--trace"}).exit_code, 0);
  const Json trace = Json::parse(read_file(folder_.path() / "run/trace.json"));
  size_t forwards = 0;
  for (const Json& event : trace.at("traceEvents")) forwards += event.value("cat", "") == "F" ? 1 : 0;
  EXPECT_EQ(forwards, 4u * 2 * 4) << "blocks × replicas × micro-batches";
}

// Blocks until the run has written that many lines, or ended.
void wait_for_lines(const RunningBinary& binary, const std::filesystem::path& file, size_t lines) {
  while (!binary.has_ended()) {
    const std::string text = read_file(file);
    if (static_cast<size_t>(std::ranges::count(text, '\n')) >= lines) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST_F(Run, FinishesItsStepAndWritesTheSummaryWhenInterrupted) {
  for (const int signal : {SIGINT, SIGTERM}) {
    std::filesystem::remove_all(folder_.path() / "run");
    RunningBinary binary(arguments({"--steps", "1000000"}), folder_.path());
    wait_for_lines(binary, folder_.path() / "run/metrics.jsonl", 3);
    binary.send_signal(signal);
    const Outcome outcome = binary.wait();
    EXPECT_EQ(outcome.exit_code, 1) << outcome.standard_error;
    const Json all = summary();
    const std::vector<Json> lines = metrics();
    EXPECT_EQ(all.at("interrupted"), true);
    EXPECT_EQ(all.at("steps"), lines.size());
    EXPECT_GE(lines.size(), 3u);
    EXPECT_EQ(all.at("final_loss"), lines.back().at("loss"));
    EXPECT_EQ(all.at("val_loss"), lines.back().at("val_loss"));
    EXPECT_TRUE(all.at("val_loss").is_number());
    EXPECT_THAT(outcome.standard_error + outcome.standard_output, HasSubstr(fmt::format("{} steps", lines.size())));
  }
}

// The bits of an interrupted run are those of the steps that it did.
TEST_F(Run, InterruptedHasTheBitsOfItsSteps) {
  RunningBinary binary(arguments({"--steps", "1000000", "--lr-schedule", "constant"}), folder_.path());
  wait_for_lines(binary, folder_.path() / "run/metrics.jsonl", 2);
  binary.send_signal(SIGINT);
  ASSERT_EQ(binary.wait().exit_code, 1);
  const Json interrupted = summary();
  std::filesystem::remove_all(folder_.path() / "run");
  const Outcome whole =
      run({"--lr-schedule", "constant", "--steps", std::to_string(interrupted.at("steps").get<int64_t>())});
  ASSERT_EQ(whole.exit_code, 0) << whole.standard_error;
  EXPECT_EQ(summary().at("params_digest"), interrupted.at("params_digest"));
}

// While it lives, a file takes that many bytes and no more, in this process and those that it starts.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_F(Run, EndsAndNamesTheFileWhenTheDiskIsFull) {
  std::unique_ptr<RunningBinary> binary;
  {
    const SmallFiles limit(4000);  // the configuration fits, and some steps do
    binary = std::make_unique<RunningBinary>(arguments({"--steps", "1000000"}), folder_.path());
  }
  const Outcome outcome = binary->wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.standard_error, HasSubstr("run/metrics.jsonl: cannot be written: File too large"));
  EXPECT_GE(metrics().size(), 2u) << "whole lines that parse";
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "run/summary.json"));
}

TEST_F(Run, EndsAndNamesTheFileWhenTheFileSystemIsFull) {
  const std::filesystem::path disk = folder_.path() / "run";
  std::filesystem::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=16k") != 0) GTEST_SKIP() << "no file system can be mounted here";
  const Outcome outcome = run({"--steps", "1000000"});
  const std::vector<Json> lines = metrics();
  umount(disk.c_str());
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.standard_error, HasSubstr("run/metrics.jsonl: cannot be written: No space left on device"));
  EXPECT_GE(lines.size(), 2u);
}

TEST_F(Run, ThatDivergesEndsAndNamesTheStep) {
  const Outcome outcome = run({"--steps", "50", "--optimizer", "sgd", "--lr", "1e30", "--min-lr", "0", "--warmup-steps",
                               "0", "--grad-clip", "0"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.standard_error, testing::ContainsRegex("step [0-9]+: loss .*What helps: a lower --lr"));
}

}  // namespace
}  // namespace shardpipe
