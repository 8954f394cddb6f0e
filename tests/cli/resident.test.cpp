// What the process really holds, against what was planned.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "support/temporary_folder.h"
#include "test_paths.h"

namespace shardpipe {
namespace {

// The most bytes of memory that the binary had resident. `most_data`: the system refuses it more memory of its own.
uint64_t resident_bytes(std::vector<std::string> arguments, rlim_t most_data = RLIM_INFINITY) {
  arguments.insert(arguments.begin(), SHARDPIPE_BINARY);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    // Stacks count whole, used or not: small ones.
    const rlimit data{most_data, most_data}, stack{1 << 20, 1 << 20};
    if (most_data != RLIM_INFINITY && (setrlimit(RLIMIT_DATA, &data) != 0 || setrlimit(RLIMIT_STACK, &stack) != 0))
      _exit(126);
    if (freopen("/dev/null", "w", stdout) != nullptr && freopen("/dev/null", "w", stderr) != nullptr)
      execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  EXPECT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

// Beyond what a dry run of the same layout needs: program, libraries, compiled steps. What four ranks of several
// threads each have besides their arenas stands in docs/memory.md.
TEST(ResidentMemorySlow, GrowsByThePlanAndLittleMore) {
  const TemporaryFolder folder;
  const std::string text = (folder.path() / "text").string(), out = (folder.path() / "run").string();
  folder.write("text", std::string(1 << 16, 'a'));
  for (const std::vector<std::string>& layout : {std::vector<std::string>{"--zero", "0"},
                                                 {"--zero", "1", "--micro-batch-size", "4"},
                                                 {"--zero", "3", "--recompute", "full"},
                                                 {"--zero", "1", "--precision", "bf16", "--schedule", "zb-h1"}}) {
    std::filesystem::remove_all(out);
    std::vector<std::string> arguments{"train", "--model", "gpt2-10m", "--data", text,
                                       "--pp",  "2",       "--dp",     "2",      "--global-batch-size",
                                       "8",     "--steps", "2"};
    arguments.insert(arguments.end(), layout.begin(), layout.end());
    std::vector<std::string> dry = arguments;
    dry.emplace_back("--dry-run");
    arguments.insert(arguments.end(), {"--out", out});
    const uint64_t before = resident_bytes(dry), during = resident_bytes(arguments);
    const auto planned = nlohmann::json::parse(content_of(std::filesystem::path(out) / "summary.json"))
                             .at("planned_peak_bytes")
                             .get<std::vector<uint64_t>>();
    const uint64_t plan = std::accumulate(planned.begin(), planned.end(), uint64_t{0});
    const uint64_t allowed = plan + std::max<uint64_t>(plan / 20, 20'000'000);
    const std::string what = fmt::format("{}", fmt::join(layout, " "));
    EXPECT_LE(during - before, allowed) << "plan " << plan << ", " << what;
    EXPECT_GE(during - before, plan - plan / 20) << "plan " << plan << ", " << what;
    fmt::print("{}: plan {:.1f} MB, grown by {:.1f} MB\n", what, static_cast<double>(plan) / 1e6,
               static_cast<double>(during - before) / 1e6);
  }
}

// GPT-2 of 354 million parameters, whose state in bf16 is 18 bytes each: parameters, gradients, masters, two moments.
// The same run without --offload ends with the same digest, and has 7 GB resident.
TEST(ResidentMemorySlow, AStateOf6GBTrainsIn2500MB) {
  constexpr uint64_t most = 2'500'000'000, on_disk = 6'000'000'000;
  const TemporaryFolder folder;
  if (std::filesystem::space(folder.path()).available < on_disk) GTEST_SKIP() << "no 6 GB free in " << folder.path();
  const std::string text = folder.write("text", std::string(1 << 16, 'a')), out = folder / "run";
  const std::vector<std::string> arguments{"train",
                                           "--model",
                                           "gpt2-350m",
                                           "--data",
                                           text,
                                           "--val-fraction",
                                           "0",
                                           "--seq-len",
                                           "128",
                                           "--dp",
                                           "2",
                                           "--zero",
                                           "3",
                                           "--precision",
                                           "bf16",
                                           "--recompute",
                                           "full",
                                           "--offload",
                                           "optimizer,params,activations",
                                           "--offload-to",
                                           "nvme:" + folder.path().string(),
                                           "--steps",
                                           "3",
                                           "--out",
                                           out};
  const uint64_t resident = resident_bytes(arguments, most);
  EXPECT_LE(resident, most);
  const auto summary = nlohmann::json::parse(content_of(std::filesystem::path(out) / "summary.json"));
  EXPECT_EQ(summary.at("steps"), 3);
  const auto sum = [&](const char* of) {
    const auto bytes = summary.at(of).get<std::vector<uint64_t>>();
    return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  };
  EXPECT_GT(sum("store_bytes"), 354'000'000u * (2 + 12));
  EXPECT_LE(sum("planned_peak_bytes"), resident);
  std::printf("%.2f GB in memory, of which %.2f GB planned; %.2f GB on disk\n", static_cast<double>(resident) / 1e9,
              static_cast<double>(sum("planned_peak_bytes")) / 1e9, static_cast<double>(sum("store_bytes")) / 1e9);
}

}  // namespace
}  // namespace shardpipe
