#include "layout/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "schedules/schedule.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Model tiny() { return make_model(model_preset("gpt2-tiny")); }  // 4 layers: 6 blocks
constexpr int64_t huge = std::numeric_limits<int64_t>::max();
constexpr int64_t negative_huge = std::numeric_limits<int64_t>::min();

std::vector<std::string> problems(const Layout& layout) { return problems_of(layout, tiny()); }

TEST(LayoutRules, RightLayoutsHaveNoProblem) {
  for (int64_t pp = 1; pp <= 6; ++pp)
    for (const int64_t dp : {1, 2, 3, 7})
      for (int zero = 0; zero <= 3; ++zero)
        for (const std::string& schedule : schedule_names())
          for (const int64_t micro_batches : {1, 3, 8}) {
            Layout layout{.pp = pp,
                          .dp = dp,
                          .zero = zero,
                          .schedule = schedule,
                          .micro_batch_size = 2,
                          .global_batch_size = 2 * dp * micro_batches,
                          .stages = {}};
            if (layout.chunks() > 6) continue;
            layout.stages = balanced_stages(tiny(), layout.chunks(), {.batch = 2, .sequence = 64});
            EXPECT_THAT(problems(layout), IsEmpty());
          }
}

TEST(LayoutRules, ChunksMustBeOnesThatTheScheduleTakesAndTheModelHasBlocksFor) {
  EXPECT_THAT(problems({.schedule = "1f1b", .chunks_per_rank = 2, .stages = {}}),
              ElementsAre(HasSubstr("--chunks: found 2, allowed with --schedule 1f1b: 1")));
  EXPECT_THAT(problems({.schedule = "interleaved", .chunks_per_rank = -1, .stages = {}}),
              ElementsAre(HasSubstr("--chunks: found -1, allowed with --schedule interleaved: 1 to 64")));
  EXPECT_THAT(problems({.pp = 4, .schedule = "interleaved", .stages = {}}),
              ElementsAre(AllOf(HasSubstr("--pp 4 × 2 chunks a rank"), HasSubstr("found 8 stages"),
                                HasSubstr("allowed: 1 to 6"))));
  EXPECT_THAT(problems({.pp = 2, .schedule = "interleaved", .stages = {3, 3}}),
              ElementsAre(HasSubstr("--stages 3,3: found 2 stages, allowed: 4, as --pp × 2 chunks a rank say")));
}

TEST(LayoutRules, StagesBeyondTheBlocksAreToldWithWhatABlockIs) {
  EXPECT_THAT(problems({.pp = 7, .global_batch_size = 1, .stages = {}}),
              ElementsAre(AllOf(HasSubstr("--pp: found 7"), HasSubstr("6 blocks (embedding + 4 layers + head)"),
                                HasSubstr("allowed: 1 to 6"))));
}

TEST(LayoutRules, BatchThatDoesNotDivideNamesBothNeighbours) {
  EXPECT_THAT(
      problems({.dp = 2, .micro_batch_size = 4, .global_batch_size = 30, .stages = {}}),
      ElementsAre("--global-batch-size 30 is not --micro-batch-size 4 × --dp 2 × an integer: 24 or 32 would be"));
  EXPECT_THAT(problems({.dp = 2, .micro_batch_size = 4, .global_batch_size = 7, .stages = {}}),
              ElementsAre(HasSubstr("an integer: 8 would be")));
  EXPECT_THAT(problems({.micro_batch_size = 3, .global_batch_size = 8, .stages = {}}),
              ElementsAre(HasSubstr("6 or 9 would be")));
}

TEST(LayoutRules, MoreMicroBatchesThanAScheduleNumbersAreRefused) {
  EXPECT_THAT(problems({.micro_batch_size = 1, .global_batch_size = 65'535, .stages = {}}), IsEmpty());
  EXPECT_THAT(problems({.micro_batch_size = 1, .global_batch_size = 65'536, .stages = {}}),
              ElementsAre(AllOf(HasSubstr("found 65536 micro-batches"), HasSubstr("allowed: 1 to 65535"),
                                HasSubstr("--micro-batch-size 2 would be"))));
}

TEST(LayoutRules, StagesListMustHaveAStageARankAndEveryBlock) {
  EXPECT_THAT(problems({.pp = 2, .stages = {2, 4}}), IsEmpty());
  EXPECT_THAT(problems({.pp = 2, .stages = {2, 2, 2}}),
              ElementsAre(AllOf(HasSubstr("--stages 2,2,2: found 3 stages"), HasSubstr("allowed: 2, as --pp says"))));
  EXPECT_THAT(problems({.pp = 2, .stages = {2, 3}}),
              ElementsAre(AllOf(HasSubstr("found 5 blocks in all"), HasSubstr("allowed: 6"))));
  EXPECT_THAT(problems({.pp = 2, .stages = {0, 6}}), ElementsAre(HasSubstr("found a stage of 0 blocks")));
  EXPECT_THAT(problems({.pp = 2, .stages = {7, -1}}), ElementsAre(HasSubstr("found a stage of -1 blocks")));
}

TEST(LayoutRules, UnknownScheduleIsToldWithTheNearest) {
  EXPECT_THAT(problems({.schedule = "1fb1", .stages = {}}),
              ElementsAre(AllOf(HasSubstr("--schedule: found '1fb1'"), HasSubstr("gpipe, 1f1b"),
                                HasSubstr("did you mean '1f1b'"))));
}

TEST(LayoutRules, ZeroStageIsNoughtToThree) {
  for (const int zero : {-1, 4, std::numeric_limits<int>::max()})
    EXPECT_THAT(problems({.zero = zero, .stages = {}}), ElementsAre(HasSubstr("--zero: found")));
}

TEST(LayoutRules, ZeroStagesOfRanksAreAsManyAsRanks) {
  EXPECT_THAT(problems({.pp = 2, .zero_of_ranks = {3, 2}, .stages = {}}), ElementsAre());
  EXPECT_THAT(problems({.pp = 2, .zero_of_ranks = {3, 2, 1}, .stages = {}}),
              ElementsAre(AllOf(HasSubstr("--zero 3,2,1: found 3 stages"), HasSubstr("allowed: one for all, or 2"))));
  EXPECT_THAT(problems({.pp = 2, .zero_of_ranks = {3, 4}, .stages = {}}), ElementsAre(HasSubstr("--zero: found 4")));
}

TEST(LayoutRules, ReshardPoliciesOfRanksAreAsManyAsRanks) {
  EXPECT_THAT(problems({.pp = 2, .zero = 3, .reshard_of_ranks = {true, false}, .stages = {}}), ElementsAre());
  EXPECT_THAT(problems({.pp = 2, .zero = 3, .reshard_of_ranks = {true, false, true}, .stages = {}}),
              ElementsAre(AllOf(HasSubstr("--reshard-after-forward: found 3 answers"), HasSubstr("or 2, as --pp"))));
}

TEST(LayoutRules, CopiesLeaveShardGroupsOfAPowerOfTwo) {
  for (const auto& [dp, replicate] : {std::pair<int64_t, int64_t>{1, 1}, {2, 2}, {4, 2}, {4, 4}, {12, 3}, {6, 3}})
    EXPECT_THAT(problems({.dp = dp, .replicate = replicate, .zero = 3, .global_batch_size = dp, .stages = {}}),
                ElementsAre());
  for (const auto& [dp, replicate] : {std::pair<int64_t, int64_t>{6, 2}, {4, 3}, {2, 4}})
    EXPECT_THAT(
        problems({.dp = dp, .replicate = replicate, .zero = 3, .global_batch_size = dp, .stages = {}}),
        ElementsAre(HasSubstr("--replicate " + std::to_string(replicate) + ": found --dp " + std::to_string(dp))));
  for (const int64_t replicate : {int64_t{0}, int64_t{-1}, huge, negative_huge})
    EXPECT_THAT(problems({.dp = 2, .replicate = replicate, .zero = 3, .global_batch_size = 2, .stages = {}}),
                ElementsAre(HasSubstr("--replicate: found")));
  EXPECT_THAT(problems({.reduce_dtype = DType::BFloat16, .reproducible = true, .stages = {}}),
              ElementsAre(AllOf(HasSubstr("--reduce-dtype bf16 beside --reproducible"),
                                HasSubstr("allowed there: --reduce-dtype fp32"))));
  EXPECT_THAT(problems({.dp = 2, .replicate = 2, .zero = 0, .global_batch_size = 2, .stages = {}}),
              ElementsAre(AllOf(HasSubstr("--replicate 2: found --zero 0"), HasSubstr("--zero 1 to 3"))));
}

TEST(LayoutRules, TiedUsesBothShardOrNeither) {
  EXPECT_THAT(problems({.pp = 2, .zero_of_ranks = {0, 3}, .stages = {}}),
              ElementsAre(AllOf(HasSubstr("--zero 0,3: found ZeRO 0 on rank 0 with the embedding and 3 on rank 1"),
                                HasSubstr("--untied"))));
  EXPECT_THAT(problems({.pp = 3, .zero_of_ranks = {1, 0, 3}, .stages = {}}), ElementsAre());
  // In a V both lie on one rank.
  EXPECT_THAT(problems({.pp = 2, .zero_of_ranks = {0, 3}, .schedule = "dualpipe-v", .stages = {}}), ElementsAre());
  ModelConfig untied = model_preset("gpt2-tiny");
  untied.tied_embeddings = false;
  const Layout layout{.pp = 2, .zero_of_ranks = {0, 3}, .stages = {}};
  EXPECT_THAT(problems_of(layout, make_model(untied)), ElementsAre());
}

TEST(LayoutRules, RanksOfOneProcessAreLimited) {
  ModelConfig config = model_preset("gpt2-tiny");
  config.layers = 200;
  const Layout layout{.pp = 100, .dp = 100, .global_batch_size = 100, .stages = {}};
  EXPECT_THAT(problems_of(layout, make_model(config)),
              ElementsAre(AllOf(HasSubstr("--pp 100 × --dp 100: found 10000 ranks"), HasSubstr("--dp 40 would be"))));
}

// Under the undefined-behaviour sanitizer this also shows that no product is formed that does not fit.
TEST(LayoutRules, NumbersAtTheEndsOfTheirTypeAreRefused) {
  for (const int64_t number : {huge, negative_huge, int64_t{0}, int64_t{-1}}) {
    EXPECT_THAT(problems({.pp = number, .stages = {}}), ElementsAre(HasSubstr("--pp: found"))) << number;
    EXPECT_THAT(problems({.dp = number, .stages = {}}), ElementsAre(HasSubstr("--dp: found"))) << number;
    EXPECT_THAT(problems({.micro_batch_size = number, .stages = {}}),
                ElementsAre(HasSubstr("--micro-batch-size: found")))
        << number;
    EXPECT_THAT(problems({.global_batch_size = number, .stages = {}}),
                ElementsAre(HasSubstr("--global-batch-size: found")))
        << number;
  }
  EXPECT_THAT(problems({.pp = 2, .stages = {huge, huge}}), ElementsAre(HasSubstr("blocks in all")));
}

TEST(LayoutRules, MicroBatchTooLargeToCountIsRefused) {
  ModelConfig config = model_preset("gpt2-tiny");
  config.seq_len = int64_t{1} << 30;
  const Layout layout{.micro_batch_size = int64_t{1} << 30, .global_batch_size = int64_t{1} << 30, .stages = {}};
  EXPECT_THAT(problems_of(layout, make_model(config)),
              ElementsAre(HasSubstr("--micro-batch-size 1073741824 × --seq-len 1073741824")));
}

TEST(LayoutRules, AllAreToldAtOnce) {
  const Layout layout{.pp = 9,
                      .dp = 0,
                      .zero = 5,
                      .schedule = "none",
                      .micro_batch_size = 0,
                      .global_batch_size = -4,
                      .stages = {1, 2}};
  EXPECT_THAT(problems(layout),
              ElementsAre(HasSubstr("--pp"), HasSubstr("--dp"), HasSubstr("--zero"), HasSubstr("--schedule"),
                          HasSubstr("--micro-batch-size"), HasSubstr("--global-batch-size"),
                          HasSubstr("found 2 stages"), HasSubstr("found 3 blocks in all")));
}

TEST(LayoutRules, ModelWithoutBlocksLeavesOutOnlyTheRulesThatNeedThem) {
  const Layout layout{.pp = 9, .dp = 0, .stages = {1, 2}};
  EXPECT_THAT(problems_of(layout, Model{.config = {}, .blocks = {}, .groups = {}}),
              ElementsAre(HasSubstr("--dp"), HasSubstr("found 2 stages")));
}

// "-", "S" or "F" of each block: embedding, layers, head.
std::string recompute_in_letters(const std::string& rule, int64_t layers) {
  ModelConfig config = model_preset("gpt2-tiny");
  config.layers = layers;
  std::string letters;
  for (const Recompute of_block : recompute_of_blocks(rule, make_model(config)))
    letters += "-SF"[static_cast<size_t>(of_block)];
  return letters;
}

TEST(RecomputeRule, SaysWhichBlocks) {
  EXPECT_EQ(recompute_in_letters("none", 4), "------");
  EXPECT_EQ(recompute_in_letters("full", 4), "-FFFF-");
  EXPECT_EQ(recompute_in_letters("selective", 4), "-SSSS-");
  EXPECT_EQ(recompute_in_letters("every:1", 4), "-FFFF-");
  EXPECT_EQ(recompute_in_letters("every:2", 5), "-F-F-F-");
  EXPECT_EQ(recompute_in_letters("every:3", 4), "-F--F-");
  EXPECT_EQ(recompute_in_letters("blocks:0,2-3,5", 4), "F-FF-F");
  EXPECT_EQ(recompute_in_letters("blocks:1", 4), "-F----");
}

TEST(RecomputeRule, AnyOtherIsRefusedWithWhatIsAllowed) {
  for (const char* rule : {"",
                           "Full",
                           "full ",
                           "every",
                           "every:",
                           "every:0",
                           "every:-1",
                           "every:9",
                           "every:1.5",
                           "every:2x",
                           "blocks",
                           "blocks:",
                           "blocks:6",
                           "blocks:1,",
                           "blocks:,1",
                           "blocks:1,,2",
                           "blocks:3-1",
                           "blocks:1-",
                           "blocks:-2",
                           "blocks:1-2-3",
                           "blocks:99999999999999999999",
                           "none,full"}) {
    Layout layout;
    layout.recompute = rule;
    EXPECT_THAT(
        problems(layout),
        ElementsAre(AllOf(HasSubstr("--recompute: found '" + std::string(rule) + "', allowed: none, full, selective"),
                          HasSubstr("every:N (1 to 4 layers)"), HasSubstr("of 0 to 5"))))
        << rule;
  }
}

TEST(ReduceEvery, FollowsTheZeroStage) {
  EXPECT_EQ(default_reduce_every(0), ReduceEvery::Step);
  EXPECT_EQ(default_reduce_every(1), ReduceEvery::Step);
  EXPECT_EQ(default_reduce_every(2), ReduceEvery::Micro);
  EXPECT_EQ(default_reduce_every(3), ReduceEvery::Micro);
}

}  // namespace
}  // namespace shardpipe
