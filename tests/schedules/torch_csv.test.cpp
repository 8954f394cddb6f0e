// PyTorch's CSV: its own files and ours are read, written in both notations, and what is wrong is told with its place.
#include "schedules/torch_csv.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "schedules/check.h"
#include "schedules/every_schedule.h"
#include "schedules/text.h"

namespace shardpipe {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

using Lines = std::vector<std::string>;

constexpr TorchNotation notations[] = {TorchNotation::I, TorchNotation::BW};

LoweredSchedule torch_schedule(const std::string& name) {
  return parse_torch_csv(content_of_torch_file(name), name + ".csv");
}
Lines mistakes_of(const std::string& text) {
  try {
    parse_torch_csv(text, "my.csv");
  } catch (const InputError& error) {
    return error.problems();
  }
  return {};
}

TEST(TorchCsv, IsReadBackAsItWasWrittenInBothNotations) {
  for_each_schedule(few_micro_batches, 8, [](const Schedule& schedule) {
    for (const TorchNotation notation : notations)
      EXPECT_EQ(without_movement(parse_torch_csv(print_torch_csv(schedule, notation), "of/" + schedule.name + ".csv")),
                schedule);
    for (const Messages messages : {Messages::AtUse, Messages::WhenMade})
      for (const TorchNotation notation : notations) {
        const LoweredSchedule lowered = with_messages(schedule, messages);
        EXPECT_EQ(parse_torch_csv(print_torch_csv(lowered, notation), schedule.name + ".csv"), lowered);
      }
  });
}

TEST(TorchCsv, MovementOfChunksIsReadBack) {
  const std::string text =
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0RESHARD,0W0,0REDUCE_GRAD\n1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n";
  const LoweredSchedule lowered = parse_torch_csv(text, "my.csv");
  EXPECT_EQ(print_torch_csv(lowered), text);
  EXPECT_EQ(lowered.by_rank[0][0], (LoweredAction{LoweredKind::Unshard, 0}));
  EXPECT_EQ(lowered.by_rank[0][7], (LoweredAction{LoweredKind::ReduceGrad, 0}));
  EXPECT_EQ(lowered.by_rank[1][1], (LoweredAction{LoweredKind::ReceiveForward, 1, 0}));
  EXPECT_THAT(problems_of(lowered, {1, 0}), IsEmpty());
}

struct TorchFile {
  std::string name;
  TorchNotation notation;
  size_t ranks;
  uint16_t chunks, micro_batches;
  std::vector<uint16_t> rank_of_chunk;
};

TEST(TorchFiles, AreReadWrittenAndReadAgain) {
  const std::vector<TorchFile> files{
      {"dualpipev_4rank_10mb", TorchNotation::I, 4, 8, 10, {0, 1, 2, 3, 3, 2, 1, 0}},
      {"zb1p_2rank_2stagep_comms", TorchNotation::BW, 2, 4, 8, {0, 1, 0, 1}},
      {"zb1p_2rank_2stagep_compute", TorchNotation::BW, 2, 4, 8, {0, 1, 0, 1}},
  };
  for (const TorchFile& file : files) {
    SCOPED_TRACE(file.name);
    const LoweredSchedule schedule = torch_schedule(file.name);
    EXPECT_EQ(notation_of_torch_csv(content_of_torch_file(file.name), file.name), file.notation);
    EXPECT_EQ(schedule.name, file.name);
    EXPECT_EQ(schedule.by_rank.size(), file.ranks);
    EXPECT_EQ(schedule.chunks, file.chunks);
    EXPECT_EQ(schedule.micro_batches, file.micro_batches);
    EXPECT_EQ(schedule.rank_of_chunk, file.rank_of_chunk);
    EXPECT_THAT(problems_of(without_movement(schedule)), IsEmpty());
    for (const TorchNotation notation : notations)
      EXPECT_EQ(parse_torch_csv(print_torch_csv(schedule, notation), file.name + ".csv"), schedule);
  }
}

// But for idle cells, which are no part of a schedule.
TEST(TorchFiles, AreWrittenAsTorchWroteThem) {
  for (const auto& [name, notation] :
       {std::pair{"dualpipev_4rank_10mb", TorchNotation::I}, {"zb1p_2rank_2stagep_comms", TorchNotation::BW}}) {
    std::string text;
    for (const char byte : content_of_torch_file(name))
      if (byte != '\r') text += byte;
    if (!text.ends_with('\n')) text += '\n';
    EXPECT_EQ(print_torch_csv(torch_schedule(name), notation), text);
  }
}

TEST(TorchCsv, IsOfTheOlderNotationWhereItHoldsABWOrSplitsWithoutAnI) {
  const auto notation = [](const std::string& text) { return notation_of_torch_csv(text, "my.csv"); };
  EXPECT_EQ(notation("0F0,0B0"), TorchNotation::I);
  EXPECT_EQ(notation("0F0,0I0,0W0"), TorchNotation::I);
  EXPECT_EQ(notation("0F0,0BW0"), TorchNotation::BW);
  EXPECT_EQ(notation("0F0,0B0,0W0"), TorchNotation::BW);
  EXPECT_EQ(notation("0F0,0F1,0B0,0W1"), TorchNotation::I);  // wrong in either
  EXPECT_EQ(notation("0F0,0F1,0B0,0I1,0W1"), TorchNotation::I);
}

TEST(TorchCsv, IdleCellsBlanksAndLineEndsChangeNothing) {
  EXPECT_EQ(parse_torch_csv("0F0,,(0F1;1B0)OVERLAP_F_B\r\n,2F0,\r\n\r\n\n", "a.csv"),
            parse_torch_csv("0F0 , ( 0F1 ; 1B0 )OVERLAP_F_B\n2F0", "a.csv"));
}

TEST(TorchCsv, TellsRowRankAndCellOfAMistake) {
  const std::vector<std::pair<std::string, Lines>> cases{
      {"", {"my.csv: found no action, allowed: a row of them a rank"}},
      {"\n\n", {"my.csv: found no action"}},
      {"0F0,0X0", {"my.csv:1: rank 0, cell 2: found '0X0', allowed: an action such as 0F3"}},
      {"0F0\n,1F,1F0", {"my.csv:2: rank 1, cell 2: found '1F', allowed: an action"}},
      {"0F0,0UNSHARD3x", {"my.csv:1: rank 0, cell 2: found '0UNSHARD3x'"}},
      {"0F0,0SEND_F", {"my.csv:1: rank 0, cell 2: found '0SEND_F'"}},
      {"0F0,0F65535", {"my.csv:1: rank 0, cell 2: found '0F65535'"}},
      {"0F0,(0F1;0B0)", {"my.csv:1: rank 0, cell 2: found '(0F1;0B0)', allowed: two passes such as"}},
      {"0F0,(0F1 0B0)OVERLAP_F_B", {"my.csv:1: rank 0, cell 2: found '(0F1 0B0)OVERLAP_F_B', allowed: two passes"}},
      {"0F0,(0F1;0SEND_F0)OVERLAP_F_B",
       {"my.csv:1: rank 0, cell 2: found '(0F1;0SEND_F0)OVERLAP_F_B', allowed: passes"}},
      {"0F0,(;)OVERLAP_F_B", {"my.csv:1: rank 0, cell 2: found", "my.csv:1: rank 0, cell 2: found"}},
      {"0F0\n\n1F0", {"my.csv:2: found an empty row, allowed: a row a rank"}},
      {"0F0,0BW0,0I1", {"my.csv: found '0BW0' (rank 0, cell 2) and '0I1' (rank 0, cell 3), allowed: one notation"}},
      {"0F0\n0F1", {"my.csv:2: rank 1, cell 1: found '0F1', allowed: the stages of this rank; stage 0 is on rank 0"}},
      {"0F0\n1F0,0SEND_F0", {"my.csv:2: rank 1, cell 2: found '0SEND_F0', allowed: the stages of this rank"}},
      {"0F0\n2F0", {"my.csv: found no pass of stage 1, allowed: every stage below 3"}},
  };
  for (const auto& [text, expected] : cases) {
    const Lines found = mistakes_of(text);
    ASSERT_EQ(found.size(), expected.size()) << text << "\n" << fmt::format("{}", fmt::join(found, "\n"));
    for (size_t i = 0; i < found.size(); ++i) EXPECT_THAT(found[i], StartsWith(expected[i])) << text;
  }
}

TEST(TorchCsv, TellsAllMistakesAtOnceAndCountsThoseThatAreTooMany) {
  EXPECT_THAT(mistakes_of("0F0,no\n(1F0;,1F0"),
              ElementsAre(StartsWith("my.csv:1: rank 0, cell 2"), StartsWith("my.csv:2: rank 1, cell 1")));
  std::string text = "0F0";
  for (int i = 0; i < 30; ++i) text += ",no";
  const Lines found = mistakes_of(text);
  ASSERT_EQ(found.size(), most_problems_told + 1);
  EXPECT_EQ(found.back(), "my.csv: and 18 mistakes more");
}

}  // namespace
}  // namespace shardpipe
