// `shardpipe show` by the real binary: pictures to stdout and into files, and every way of asking wrongly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/run_binary.h"
#include "report/table.h"
#include "schedules/schedule.h"

namespace shardpipe {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

using Words = std::vector<std::string>;

Outcome show(const TemporaryFolder& folder, Words flags) {
  flags.insert(flags.begin(), "show");
  return run_binary(flags, folder.path());
}

TEST(Show, WithoutFlagsIsASmallPictureAndWhatToTry) {
  const TemporaryFolder folder;
  const Outcome outcome = show(folder, {});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.standard_error, "");
  EXPECT_THAT(outcome.standard_output, StartsWith("1f1b: 4 ranks, 8 micro-batches\n"));
  EXPECT_THAT(outcome.standard_output, HasSubstr("\nrank 3  ······F0B0- F1B1- F2B2- F3B3- F4B4- F5B5- F6B6- F7B7- "));
  EXPECT_THAT(outcome.standard_output, HasSubstr("Try --compare"));
  EXPECT_EQ(outcome.standard_output.find('\x1b'), std::string::npos) << "a file is no terminal";
}

TEST(Show, EveryScheduleFitsIntoEightyColumns) {
  const TemporaryFolder folder;
  for (const std::string& name : schedule_names())
    for (const auto& [pp, m] : {std::pair{"4", "8"}, std::pair{"8", "32"}}) {
      const Outcome outcome = show(folder, {"--schedule", name, "--pp", pp, "--micro-batches", m, "--width", "80"});
      EXPECT_EQ(outcome.exit_code, 0) << name << outcome.standard_error;
      std::istringstream lines(outcome.standard_output);
      for (std::string line; std::getline(lines, line);) EXPECT_LE(text_columns(line), 80u) << line;
    }
}

TEST(Show, ColorIsAskedForOrLeft) {
  const TemporaryFolder folder;
  EXPECT_THAT(show(folder, {"--color", "always"}).standard_output, HasSubstr("\x1b[0;38;5;"));
  EXPECT_EQ(show(folder, {"--color", "never"}).standard_output, show(folder, {"--color", "auto"}).standard_output);
}

TEST(Show, TheEndOfOutSaysTheFormat) {
  const TemporaryFolder folder;
  for (const char* name : {"a.svg", "a.json", "a.txt"}) {
    const Outcome outcome = show(folder, {"--out", name});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.standard_error;
    EXPECT_THAT(outcome.standard_output, HasSubstr("step 33, bubble 27.3 %"));
  }
  EXPECT_THAT(read_file(folder.path() / "a.svg"), StartsWith("<svg xmlns="));
  EXPECT_EQ(read_file(folder.path() / "a.svg"), show(folder, {"--format", "svg"}).standard_output);
  EXPECT_THAT(read_file(folder.path() / "a.txt"), StartsWith("1f1b: 4 ranks"));
  const auto trace = nlohmann::json::parse(read_file(folder.path() / "a.json"));
  size_t passes = 0;
  for (const auto& event : trace["traceEvents"]) passes += event["ph"] == "X" ? 1u : 0u;
  EXPECT_EQ(passes, 4u * 8 * 2);
}

TEST(Show, ComparesOnOneScaleWithATable) {
  const TemporaryFolder folder;
  const Outcome outcome = show(folder, {"--compare", "gpipe,1f1b"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.standard_error;
  EXPECT_THAT(outcome.standard_output, HasSubstr("gpipe          1    33  27.3 %     8         2.00\n"));
  EXPECT_THAT(outcome.standard_output, HasSubstr("1f1b           1    33  27.3 %     4         1.00\n"));
}

TEST(Show, CostsMoveTheBoxes) {
  const TemporaryFolder folder;
  const auto line = [&](const std::string& schedule, const std::string& costs) {
    return show(folder, {"--schedule", schedule, "--costs", costs, "--out", "a.txt"}).standard_output;
  };
  EXPECT_THAT(line("1f1b", "2,1,1"), HasSubstr("step 44, bubble 27.3 %"));       // (m + p - 1) × 4
  EXPECT_THAT(line("gpipe", "1,1,1,0.5"), HasSubstr("step 36, bubble 33.3 %"));  // 33, and 2 × (p - 1) messages
}

TEST(ShowPage, ThePictureIsWhatTheCommandPrints) {
  const TemporaryFolder folder;
  const std::string page = content_of(TEST_DATA_DIR "/../docs/show.md");
  for (const Words& flags : std::vector<Words>{{"--schedule", "1f1b"}, {"--compare", "gpipe,1f1b"}}) {
    std::string command = "shardpipe show", file = "docs/pictures/";
    for (const std::string& flag : flags) command += " " + flag;
    file += flags[0] == "--compare" ? "gpipe-1f1b.svg" : "1f1b.svg";
    EXPECT_THAT(page, HasSubstr(command + " --out " + file + "\n"));
    Words with_format = flags;
    with_format.insert(with_format.end(), {"--format", "svg"});
    EXPECT_EQ(show(folder, with_format).standard_output, content_of(TEST_DATA_DIR "/../" + file))
        << "draw it again: " << command << " --out " << file;
  }
}

constexpr const char* two_by_two =
    "schedule two-by-two\nchunks 4 v\nmicro-batches 2\n"
    "rank 0  0F0 0F1 3F0 (3F1;3B0) 3B1 0B0 0B1\n"
    "rank 1  1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1\n";

TEST(ShowFile, DrawsAScheduleOfOnesOwnInEveryFormat) {
  const TemporaryFolder folder;
  folder.write("my.schedule", two_by_two);
  const Words drawn{"--schedule", "file:my.schedule"};
  const auto with = [&](const Words& further) {
    Words flags = drawn;
    flags.insert(flags.end(), further.begin(), further.end());
    return show(folder, flags);
  };
  const Outcome text = with({});
  EXPECT_EQ(text.exit_code, 0) << text.standard_error;
  EXPECT_THAT(text.standard_output, StartsWith("two-by-two: 2 ranks, 2 micro-batches, 2 chunks a rank\n"));
  EXPECT_THAT(text.standard_output, HasSubstr("\nrank 0  F0- F1- ····f0- ····f1++++b0--- b1----- "));
  EXPECT_EQ(with({"--pp", "2", "--micro-batches", "2", "--chunks", "2"}).standard_output, text.standard_output)
      << "flags that say what the file says";
  EXPECT_THAT(with({"--format", "svg"}).standard_output,
              HasSubstr("<title>rank 0: backward of micro-batch 0, chunk 3"));
  const auto trace = nlohmann::json::parse(with({"--format", "perfetto"}).standard_output);
  size_t together = 0;
  for (const auto& event : trace["traceEvents"])
    together += event.contains("args") && event["args"].contains("runs_together");
  EXPECT_EQ(together, 2u);
}

// The file says how many ranks and micro-batches there are; schedules beside it are made for as many.
TEST(ShowFile, IsComparedWithGeneratorsAtItsOwnSize) {
  const TemporaryFolder folder;
  folder.write("my.schedule", two_by_two);
  const Outcome outcome = show(folder, {"--compare", "1f1b,file:my.schedule,interleaved"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.standard_error;
  EXPECT_THAT(outcome.standard_output, StartsWith("1f1b: 2 ranks, 2 micro-batches; step 9, bubble 33.3 %\n"));
  EXPECT_THAT(outcome.standard_output, HasSubstr("\ntwo-by-two: 2 ranks, 2 micro-batches, 2 chunks a rank; step "));
  EXPECT_THAT(outcome.standard_output, HasSubstr("\ninterleaved: 2 ranks, 2 micro-batches, 2 chunks a rank; step "));
}

TEST(ShowFile, ANameInAFileDoesNotSpeakToTheTerminal) {
  const TemporaryFolder folder;
  folder.write("my.schedule", "schedule a\x1b[31m\nchunks 1 loop\nrank 0 0F0 0B0\n");
  EXPECT_THAT(show(folder, {"--schedule", "file:my.schedule"}).standard_output, StartsWith("a?[31m: 1 rank, "));
}

TEST(ShowFile, PyTorchsSchedulesFitIntoEightyColumns) {
  const TemporaryFolder folder;
  for (const auto& [name, title] :
       {std::pair{"dualpipev_4rank_10mb", ": 4 ranks, 10 micro-batches, 2 chunks a rank\n"},
        std::pair{"zb1p_2rank_2stagep_compute", ": 2 ranks, 8 micro-batches, 2 chunks a rank\n"},
        std::pair{"zb1p_2rank_2stagep_comms", ": 2 ranks, 8 micro-batches, 2 chunks a rank\n"}}) {
    const Outcome outcome =
        show(folder, {"--schedule", std::string("file:" TEST_DATA_DIR "/schedules/torch/") + name + ".csv"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.standard_error;
    EXPECT_THAT(outcome.standard_output, StartsWith(std::string(name) + title));
    std::istringstream lines(outcome.standard_output);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(text_columns(line), 80u) << line;
  }
}

struct WrongFlags {
  Words flags;
  std::vector<Words> lines;  // a list for each line of stderr, in order: the texts that it holds
};

// What is written is read again as the same schedule, in both formats, and back from one to the other.
TEST(Show, WritesASchedulesOwnFormsWhichItReadsAgain) {
  for (const std::string& name : schedule_names()) {
    const TemporaryFolder folder;
    const auto write = [&](const std::string& what, const std::string& file) {
      EXPECT_EQ(show(folder, {"--schedule", what, "--out", file}).exit_code, 0) << what << ' ' << file;
    };
    write(name, "a.schedule");
    write(name, "a#b.csv");
    write("file:a.schedule", "c.csv");
    write("file:a#b.csv", "d.schedule");
    EXPECT_EQ(read_file(folder.path() / "a#b.csv"), read_file(folder.path() / "c.csv")) << name;
    const std::string first = read_file(folder.path() / "a.schedule"), last = read_file(folder.path() / "d.schedule");
    EXPECT_THAT(first, StartsWith("schedule " + name + "\nchunks "));
    EXPECT_THAT(last, StartsWith("schedule a-b\nchunks "));
    EXPECT_EQ(first.substr(first.find('\n')), last.substr(last.find('\n'))) << name;
    EXPECT_EQ(show(folder, {"--schedule", name, "--format", "schedule"}).standard_output, first);
  }
}

TEST(Show, WrongFlagsAreAllToldAndWriteNothing) {
  const TemporaryFolder folder;
  folder.write("file", "");
  folder.write("my.schedule", two_by_two);
  folder.write("three.schedule", "schedule three\nchunks 3 loop\nrank 0 0F0 0B0\nrank 1 1F0 1B0\nrank 2 2F0 2B0\n");
  folder.write("early.schedule", "schedule early\nchunks 1 loop\nrank 0 0B0 0F0\n");
  const auto before = everything_in(folder.path());
  const std::vector<WrongFlags> table = {
      {{"--schedule", "file:none"}, {{"--schedule file:none: found no such file"}}},
      {{"--schedule", "file:"}, {{"--schedule file:: found no such file"}}},
      {{"--schedule", "file:."}, {{"--schedule file:.: found a folder"}}},
      {{"--schedule", "file:file"}, {{"found no line 'schedule NAME'"}, {"no line 'chunks'"}, {"no line 'rank 0'"}}},
      {{"--compare", "1f1b,file:none"}, {{"--compare file:none: found no such file"}}},
      {{"--schedule", "file:early.schedule"}, {{"rank 0", "0B0"}}},
      {{"--schedule", "file:my.schedule", "--pp", "4", "--micro-batches", "8", "--chunks", "3"},
       {{"--pp: found 4, but file:my.schedule has 2; allowed: 2"},
        {"--micro-batches: found 8, but file:my.schedule has 2; allowed: 2"},
        {"--chunks: found 3, but file:my.schedule has 4 on 2 ranks"}}},
      {{"--compare", "1f1b,file:my.schedule", "--pp", "4"}, {{"--pp: found 4, but file:my.schedule has 2"}}},
      {{"--compare", "file:my.schedule,file:three.schedule"},
       {{"--compare: found --pp 2 in file:my.schedule and 3 in file:three.schedule"},
        {"--compare: found --micro-batches 2 in file:my.schedule and 1 in file:three.schedule"}}},
      {{"--pp", "0", "--micro-batches", "0"},
       {{"--pp: found 0", "allowed: 1 to 1024"}, {"--micro-batches: found 0", "allowed: 1 to 4096"}}},
      {{"--pp", "-3"}, {{"--pp: found -3"}}},
      {{"--micro-batches", "1e3"}, {{"--micro-batches: found '1e3'", "a whole number"}}},
      {{"--pp", "65537"}, {{"--pp: found 65537"}}},
      {{"--pp", "1024", "--micro-batches", "4096"}, {{"found 4194304 forwards", "--micro-batches 195 would be"}}},
      {{"--schedule", "1fb1"},
       {{"--schedule: found '1fb1'", "allowed: gpipe, 1f1b", "file:PATH", "did you mean '1f1b'"}}},
      {{"--schedul", "1f1b"}, {{"--schedul", "unknown flag of show", "did you mean '--schedule'"}}},
      {{"--chunks", "2"}, {{"--chunks: found 2, but 1f1b has always 1 a rank", "allowed: 1"}}},
      {{"--chunks", "0"}, {{"--chunks: found 0", "allowed: 1 to"}}},
      {{"--compare", "1f1b,gpipe", "--chunks", "3"}, {{"--chunks: found 3", "none of the schedules"}}},
      {{"--compare", "1f1b,gpip"}, {{"--compare: found 'gpip'", "did you mean 'gpipe'"}}},
      {{"--compare", "1f1b,,gpipe"}, {{"--compare: found ''", "allowed: gpipe, 1f1b"}}},
      {{"--compare", "1f1b", "--schedule", "gpipe"}, {{"--compare: found beside --schedule"}}},
      {{"--compare", "1f1b,gpipe", "--format", "perfetto"}, {{"--format perfetto: found beside --compare"}}},
      {{"--compare", "1f1b,gpipe", "--out", "a.csv"}, {{"--format csv: found beside --compare"}}},
      {{"--format", "schedule", "--width", "100"}, {{"--width: found beside --format schedule"}}},
      {{"--costs", "1,-1,1"}, {{"--costs: found '1,-1,1'", "three or four numbers from 0"}}},
      {{"--costs", "1,nan,1"}, {{"--costs: found '1,nan,1'"}}},
      {{"--costs", "1,inf,1"}, {{"--costs: found '1,inf,1'"}}},
      {{"--costs", "1,1"}, {{"--costs: found '1,1'"}}},
      {{"--costs", "1,1,1,1,1"}, {{"--costs: found '1,1,1,1,1'"}}},
      {{"--costs", "0,0,0"}, {{"--costs: found '0,0,0'", "not all 0"}}},
      {{"--costs="}, {{"--costs: found no value"}}},
      {{"--width", "5"}, {{"--width: found 5", "allowed: 40 to"}}},
      {{"--format", "svg", "--width", "100"}, {{"--width: found beside --format svg"}}},
      {{"--format", "png"}, {{"--format: found 'png'", "allowed: text, svg, perfetto, schedule, csv"}}},
      {{"--color", "yes"}, {{"--color: found 'yes'", "allowed: auto, always, never"}}},
      {{"--out", "none/a.svg"}, {{"--out none/a.svg: found no folder none"}}},
      {{"--out", "file/a.svg"}, {{"--out file/a.svg: cannot be written"}}},
      {{"--out", "."}, {{"--out .: cannot be written"}}},
      {{"--config", "run.toml"}, {{"--config: found an unknown flag of show"}}},
      {{"--dry-run"}, {{"--dry-run: found an unknown flag of show"}}},
      {{"8"}, {{"'8'", "no flag takes"}}},
  };
  for (const WrongFlags& wrong : table) {
    const Outcome outcome = show(folder, wrong.flags);
    EXPECT_EQ(outcome.exit_code, 2) << wrong.flags[0];
    EXPECT_EQ(outcome.standard_output, "");
    EXPECT_EQ(everything_in(folder.path()), before);
    const Words lines = outcome.error_lines();
    EXPECT_THAT(lines, Each(StartsWith("shardpipe: ")));
    ASSERT_EQ(lines.size(), wrong.lines.size()) << outcome.standard_error;
    for (size_t i = 0; i < lines.size(); ++i)
      for (const std::string& text : wrong.lines[i]) EXPECT_THAT(lines[i], HasSubstr(text));
  }
}

TEST(Show, HelpListsEveryFlagAndScheduleInEightyColumns) {
  const TemporaryFolder folder;
  const Outcome outcome = show(folder, {"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* flag :
       {"--schedule NAME|file:PATH", "--compare A,B,C", "--pp N", "--micro-batches N", "--chunks N",
        "--costs F,I,W[,T]", "--format NAME", "--out FILE", "--width N", "--color auto|always|never"})
    EXPECT_THAT(outcome.standard_output, HasSubstr(std::string("\n  ") + flag));
  for (const std::string& name : schedule_names()) EXPECT_THAT(outcome.standard_output, HasSubstr("\n  " + name + " "));
  std::istringstream lines(outcome.standard_output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(text_columns(line), 80u) << line;
}

}  // namespace
}  // namespace shardpipe
