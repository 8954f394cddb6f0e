// A person's text format: what is written is read back, and what is wrong is told with line and column.
#include "schedules/text.h"

#include <gmock/gmock.h>

#include <random>

#include "base/error.h"
#include "schedules/check.h"
#include "schedules/every_schedule.h"
#include "schedules/torch_csv.h"

namespace shardpipe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

using Lines = std::vector<std::string>;

template <typename Read>
Lines mistakes(const Read& read) {
  try {
    read();
  } catch (const InputError& error) {
    return error.problems();
  }
  return {};
}
Lines mistakes_of(std::string_view text) {
  return mistakes([&] { parse_schedule(text, "my"); });
}

constexpr std::string_view two_by_two =
    "schedule two by two\n"
    "chunks 4 v\n"
    "micro-batches 2\n"
    "rank 0 0F0 0F1 3F0 (3F1;3B0) 3B1 0B0 0I1 0W1\n"
    "rank 1 1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1\n";

TEST(ScheduleText, IsReadBackAsItWasWritten) {
  for_each_schedule(few_micro_batches, 8, [](const Schedule& schedule) {
    EXPECT_EQ(parse_schedule(print_schedule(schedule)), schedule);
    EXPECT_EQ(read_schedule(print_schedule(schedule), "my.schedule"), schedule);
  });
}

TEST(ScheduleText, OfAnyPlacementIsReadBackAsItWasWritten) {
  Schedule schedule = parse_schedule(two_by_two);
  for (const std::vector<uint16_t>& ranks :
       {std::vector<uint16_t>{0, 1, 1, 0}, {0, 1, 0, 1}, {1, 0, 1, 0}, {0, 0, 1, 1}}) {
    schedule.rank_of_chunk = ranks;
    EXPECT_EQ(parse_schedule(print_schedule(schedule)), schedule);
  }
  EXPECT_THAT(print_schedule(schedule), HasSubstr("chunks on 0 0 1 1\n"));
  schedule.by_rank[1].clear();  // wrong, but a schedule that can be written down
  EXPECT_EQ(parse_schedule(print_schedule(schedule)), schedule);
}

TEST(ScheduleText, OfTorchsOwnIsReadBackAsItWasWritten) {
  for (const std::string& name : torch_files) {
    const Schedule schedule = read_schedule(content_of_torch_file(name), name + ".csv");
    EXPECT_EQ(parse_schedule(print_schedule(schedule)), schedule) << name;
  }
}

TEST(ScheduleText, SaysWhatItShows) {
  const Schedule schedule = parse_schedule(two_by_two);
  EXPECT_EQ(schedule.name, "two by two");
  EXPECT_EQ(schedule.chunks, 4);
  EXPECT_EQ(schedule.micro_batches, 2);
  EXPECT_THAT(schedule.rank_of_chunk, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(schedule.by_rank[0][3], (Cell{Pass::Forward, 3, 1, true}));
  EXPECT_EQ(schedule.by_rank[0][4], (Cell{Pass::Backward, 3, 0, false}));
  EXPECT_EQ(schedule.by_rank[0][7], (Cell{Pass::BackwardInput, 0, 1, false}));
  EXPECT_EQ(schedule.by_rank[0][8], (Cell{Pass::BackwardWeight, 0, 1, false}));
}

TEST(ScheduleText, CommentsBlanksAndLineBreaksChangeNothing) {
  EXPECT_EQ(parse_schedule("\n# a comment, 9F9\r\n  schedule   two by two \t# the name\r\n"
                           "micro-batches 2#two\n\nchunks  on\t0 1 1 0\n"
                           "rank 0:\n  0F0 0F1 # first\n\n  3F0 ( 3F1 ; 3B0 )3B1(0B0;1F1) # and on\n"
                           "rank 1 1F0"),
            parse_schedule("schedule two by two\nchunks 4 v\nmicro-batches 2\n"
                           "rank 0 0F0 0F1 3F0 (3F1;3B0) 3B1 (0B0;1F1)\nrank 1 1F0\n"));
}

TEST(ScheduleText, MicroBatchesAreThoseOfTheCellsWhereNoLineSaysSo) {
  EXPECT_EQ(parse_schedule("schedule a\nchunks 1 loop\nrank 0 0F0 0F4 0B0").micro_batches, 5);
}

TEST(ScheduleText, TellsLineAndColumnOfAMistake) {
  const auto with = [](std::string_view cells) {
    return fmt::format("schedule a\nchunks 2 loop\nrank 0 0F0 {}\nrank 1 1F0\n", cells);
  };
  const std::vector<std::pair<std::string, Lines>> cases{
      {"", {"my: found no line 'schedule NAME'", "my: found no line 'chunks'", "my: found no line 'rank 0'"}},
      {with("0X1"), {"my:3:12: found '0X1', allowed: a cell such as 0F3"}},
      {with("0F"), {"my:3:12: found '0F', allowed: a cell"}},
      {with("0F1x"), {"my:3:12: found '0F1x'"}},
      {with("-1F0"), {"my:3:12: found '-1F0'"}},
      {with("65536F0"), {"my:3:12: found '65536F0'"}},
      {with("0F65535"), {"my:3:12: found '0F65535'"}},
      {with("2F0"), {"my:3:12: found '2F0', allowed: chunks 0 to 1 (rank 0, cell 2)"}},
      {with("(0F1;0B0"), {"my:3:12: found '(0F1;0B0', allowed: ')' at the end"}},
      {with("(0F1)"), {"my:3:12: found '(0F1)', allowed: two cells with ';'"}},
      {with("(0F1; oops)"), {"my:3:18: found 'oops', allowed: a cell"}},
      {with("(0F1;)"), {"my:3:17: found '', allowed: a cell"}},
      {with("0F1)"), {"my:3:12: found '0F1)'"}},
      {with("\x1b[2J"), {"my:3:12: found '?[2J'"}},
      {with("0F1\nrank 2"), {"my:4:6: found '2', allowed: 1: ranks in their order", "my:5:6: found '1', allowed: 2"}},
      {"schedule\nchunks 1 v\nrank 0 0F0", {"my:1:9: found the end of the line, allowed: a name"}},
      {"schedule a\nchunks 0 v\nrank 0 0F0", {"my:2:8: found '0', allowed: a number of chunks"}},
      {"schedule a\nchunks 2 x\nrank 0 0F0", {"my:2:10: found 'x', allowed: loop or v"}},
      {"schedule a\nchunks 2 v v\nrank 0 0F0", {"my:2:12: found 'v', allowed: the end of the line"}},
      {"schedule a\nchunks on\nrank 0 0F0", {"my:2:10: found the end of the line, allowed: the rank of each chunk"}},
      {"schedule a\nchunks on 0 7 x\nrank 0 0F0", {"my:2:15: found 'x', allowed: the rank of each chunk"}},
      {"schedule a\nchunks on 0 7\nrank 0 0F0", {"my: chunks on …: found rank 7 for chunk 1, allowed: 0 to 0"}},
      {"schedule a\nchunks 1 v\nmicro-batches 0\nrank 0 0F0",
       {"my:3:15: found '0', allowed: a number from 1 to 65535"}},
      {"schedule a\nchunks 1 v\nmicro-batches 2\nrank 0 0F2", {"my:4:8: found '0F2', allowed: micro-batches 0 to 1"}},
      {"schedule a\nchunks 1 v\nrank 0", {"my: found no cell, allowed: at least one"}},
      {"schedule a\nschedule b\nchunks 1 v\nrank 0 0F0", {"my:2:1: found 'schedule', allowed: this line once"}},
      {"schedule a\nrank 0 0F0\nchunks 1 v", {"my:3:1: found 'chunks', allowed: this line before the first rank"}},
      {"schedule a\nchnks 1 v\nrank 0 0F0",
       {"my:2:1: found 'chnks', allowed: schedule NAME", "my: found no line 'chunks'"}},
      {"0F0 0B0", {"my:1:1: found '0F0', allowed: schedule NAME", "my: found no", "my: found no", "my: found no"}},
  };
  for (const auto& [text, expected] : cases) {
    const Lines found = mistakes_of(text);
    ASSERT_EQ(found.size(), expected.size()) << text << "\n" << fmt::format("{}", fmt::join(found, "\n"));
    for (size_t i = 0; i < found.size(); ++i) EXPECT_THAT(found[i], StartsWith(expected[i])) << text;
  }
}

TEST(ScheduleText, TellsAllMistakesAtOnceAndCountsThoseThatAreTooMany) {
  EXPECT_EQ(mistakes_of("schedule\nchunks 2 x\nmicro-batches\nrank 1 0F0 0G0\n(0F1;").size(), 6u);
  std::string text = "schedule a\nchunks 1 v\nrank 0";
  for (int i = 0; i < 30; ++i) text += " no";
  const Lines found = mistakes_of(text);
  ASSERT_EQ(found.size(), most_problems_told + 1);
  EXPECT_EQ(found.back(), "my: and 18 mistakes more");
}

TEST(ScheduleText, OfImpossibleSchedulesTellsWhatTheyLack) {
  EXPECT_THAT(mistakes([] { read_schedule("schedule a\nchunks 1 v\nrank 0 0F0 0B1 0B0\n", "my"); }),
              ElementsAre("my: rank 0: the forward of chunk 0 for micro-batch 1 is missing",
                          StartsWith("my: rank 0, cell 3: 0B0 adds to the gradients of chunk 0 behind 0B1")));
}

TEST(ScheduleText, IsToldFromACsvByItsEndOrItsFirstCell) {
  EXPECT_EQ(read_schedule("0F0,0B0\n", "my").name, "my");
  EXPECT_EQ(read_schedule(",0F0,0B0\n", "of/mine.csv").name, "mine");
  EXPECT_EQ(read_schedule("# mine\nschedule a\nchunks 1 v\nrank 0 0F0 0B0\n", "my").name, "a");
  EXPECT_THAT(
      mistakes([] { read_schedule("schedule a\n", "my.csv"); }),
      ElementsAre(StartsWith("my.csv:1: rank 0, cell 1: found 'schedule a'"), StartsWith("my.csv: found no action")));
}

TEST(Cells, AreChunkPassAndMicroBatchAlone) {
  EXPECT_EQ(parse_cell("12W345"), (Cell{Pass::BackwardWeight, 12, 345}));
  for (const char* text : {"", "F", "0", "0F", "F0", "0f0", "0F0 ", " 0F0", "0F-1", "+0F0", "0F0F0", "0BW0", "65535F0"})
    EXPECT_EQ(parse_cell(text), std::nullopt) << text;
}

std::string content_of_page(const std::string& name) {
  std::ifstream file(std::string(TEST_DATA_DIR) + "/../docs/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The page shows the example file, and what is told of three that differ from it.
TEST(ScheduleText, IsThatOfThePageAndMistakesAreToldAsThere) {
  const std::string page = content_of_page("schedules.md"), example = content_of_page("examples/two-by-two.schedule");
  EXPECT_THAT(page, HasSubstr(example));
  EXPECT_EQ(parse_schedule(example), parse_schedule(two_by_two));
  const auto expect_on_page = [&](const std::string& file, std::string text,
                                  const std::vector<std::pair<std::string, std::string>>& changes) {
    for (const auto& [old, changed] : changes) text.replace(text.find(old), old.size(), changed);
    const Lines told = mistakes([&] { read_schedule(text, file); });
    EXPECT_FALSE(told.empty()) << file;
    for (const std::string& line : told) EXPECT_THAT(page, HasSubstr("shardpipe: " + line + "\n"));
  };
  expect_on_page("swapped.schedule", example, {{"(3F1;3B0)", "3F2"}});
  expect_on_page("broken.schedule", example, {{"0F0 0F1 3F0 (3F1;3B0) 3B1", "3F0 0F0 (3F1;3B1) 3B0"}});
  expect_on_page("hangs.schedule", example,
                 {{"0F0 0F1 3F0 (3F1;3B0) 3B1 0B0", "0F0 3F0 3B0 0B0 0F1 3F1 3B1"}, {"1F0 2F0 1F1", "1F0 1F1 2F0"}});
}

// Whatever a file holds, reading it ends in a schedule that can run or in an InputError with something to say.
void expect_read_or_refused(const std::string& text, const std::string& file) {
  try {
    EXPECT_TRUE(problems_of(read_schedule(text, file)).empty()) << text;
  } catch (const InputError& error) {
    EXPECT_FALSE(error.problems().empty());
    for (const std::string& problem : error.problems()) EXPECT_THAT(problem, StartsWith(file)) << text;
  }
}

std::vector<std::pair<std::string, std::string>> right_texts() {
  std::vector<std::pair<std::string, std::string>> texts{{std::string(two_by_two), "my"}};
  for (const std::string& name : schedule_names()) {
    const Schedule schedule = make_schedule(name, {.ranks = 2, .micro_batches = 3, .chunks_per_rank = 0});
    texts.emplace_back(print_schedule(schedule), "my");
    texts.emplace_back(print_torch_csv(schedule), "my.csv");
  }
  for (const std::string& name : torch_files) texts.emplace_back(content_of_torch_file(name), name + ".csv");
  return texts;
}

TEST(ScheduleFiles, CutAtAnyByteAreReadOrRefused) {
  for (const auto& [text, file] : right_texts())
    for (size_t bytes = 0; bytes < text.size(); ++bytes) expect_read_or_refused(text.substr(0, bytes), file);
}

TEST(ScheduleFiles, ChangedAtRandomAreReadOrRefused) {
  constexpr std::string_view likely = "0123456789FBIWv();,:# \n\r\t-SEND_RECV_UNSHARD_GRAD_OVERLAP_F_B";
  std::mt19937 random(1);
  const auto below = [&](size_t end) { return random() % end; };
  const auto texts = right_texts();
  for (int round = 0; round < 20'000; ++round) {
    auto [text, file] = texts[below(texts.size())];
    for (size_t edits = 1 + below(4); edits > 0 && !text.empty(); --edits) {
      const size_t at = below(text.size());
      const char byte = below(8) == 0 ? static_cast<char>(random()) : likely[below(likely.size())];
      switch (below(4)) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(at, 1, byte);
          break;
        case 2:
          text.erase(at, 1 + below(5));
          break;
        default:
          text.insert(below(text.size()), text.substr(at, 1 + below(20)));
      }
    }
    expect_read_or_refused(text, file);
  }
}

TEST(ScheduleFiles, OfRandomBytesAreReadOrRefused) {
  std::mt19937 random(2);
  for (int round = 0; round < 5'000; ++round) {
    std::string text(random() % 200, '\0');
    for (char& byte : text) byte = static_cast<char>(random());
    expect_read_or_refused(text, round % 2 == 0 ? "my" : "my.csv");
    expect_read_or_refused("schedule a\nchunks 1 v\nrank 0 " + text, "my");
    expect_read_or_refused("0F0,0B0," + text, "my.csv");
  }
}

}  // namespace
}  // namespace shardpipe
