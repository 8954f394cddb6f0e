// A layout never changes a bit: for each data-parallel size, number of micro-batches and cadence, the digest and every
// step's loss and norm of pipeline depths, ZeRO stages and schedules are those of the plain loop, which has no program,
// no executor and no threads. Layouts come smallest first and a test ends at its first difference, so that a failure
// names the smallest layout that shows it.
#include <array>

#include "equivalence/course.h"
#include "schedules/schedule.h"
#include "support/temporary_folder.h"

namespace shardpipe {
namespace {

ModelConfig model_of(const std::string& name) {
  if (name == "gpt2") return tiny_gpt2();
  ModelConfig llama = tiny_llama();
  llama.tied_embeddings = name == "llamatied";
  return llama;
}

struct Grid {
  std::vector<int64_t> micro_batches, pp;
  std::vector<int> zero = {0, 1, 2, 3};
};

void expect_plain_bits(const ModelConfig& model, int64_t dp, ReduceEvery reduce_every, const Grid& grid) {
  for (const int64_t m : grid.micro_batches) {
    const Course plain = train_plain(tiny_run(model, tiny_layout(1, dp, 0, m, reduce_every)));
    for (const int64_t pp : grid.pp)
      for (const int zero : grid.zero)
        for (const std::string& schedule : schedule_names()) {
          const RunConfig config = tiny_run(model, tiny_layout(pp, dp, zero, m, reduce_every, schedule));
          if (config.layout.chunks() > model.layers + 2) continue;
          ASSERT_TRUE(same_bits(train(config), plain)) << describe(config);
        }
  }
}

class OfLayouts : public testing::TestWithParam<std::tuple<std::string, int64_t, ReduceEvery>> {
 protected:
  ModelConfig model_ = model_of(std::get<0>(GetParam()));
  int64_t dp_ = std::get<1>(GetParam());
  ReduceEvery reduce_every_ = std::get<2>(GetParam());
};
const auto name_of_parameters = [](const auto& tested) {
  return fmt::format("{}Dp{}{}", std::get<0>(tested.param), std::get<1>(tested.param),
                     std::get<2>(tested.param) == ReduceEvery::Micro ? "EveryMicroBatch" : "EveryStep");
};

class SameBitsSlow : public OfLayouts {};
TEST_P(SameBitsSlow, AcrossDepthsZeroStagesAndSchedules) {
  const bool all = reduce_every_ == ReduceEvery::Step;  // the other cadence differs in the reduction alone
  expect_plain_bits(
      model_, dp_, reduce_every_,
      {.micro_batches = all ? std::vector<int64_t>{1, 2, 3, 5, 8} : std::vector<int64_t>{1, 3, 8}, .pp = {1, 2, 4}});
}
INSTANTIATE_TEST_SUITE_P(All, SameBitsSlow,
                         testing::Combine(testing::Values<std::string>("gpt2", "llama"), testing::Values(1, 2, 4),
                                          testing::Values(ReduceEvery::Step, ReduceEvery::Micro)),
                         name_of_parameters);

class SameBits : public OfLayouts {};
TEST_P(SameBits, AcrossDepthsZeroStagesAndSchedules) {
  expect_plain_bits(model_, dp_, reduce_every_, {.micro_batches = {1, 3}, .pp = {1, 2}, .zero = {0, 3}});
}
INSTANTIATE_TEST_SUITE_P(Slice, SameBits,
                         testing::Combine(testing::Values<std::string>("gpt2", "llama", "llamatied"),
                                          testing::Values(1, 2),
                                          testing::Values(ReduceEvery::Step, ReduceEvery::Micro)),
                         name_of_parameters);

// What a layout may vary besides, one at a time.
class SameBitsToo : public testing::TestWithParam<std::string> {
 protected:
  // All of it on two stages and two replicas.
  RunConfig config_ = tiny_run(model_of(GetParam()), tiny_layout(2, 2, 3, 3, ReduceEvery::Micro));
  void expect_plain_bits() const { EXPECT_TRUE(same_bits(train(config_), train_plain(config_))) << describe(config_); }
};
TEST_P(SameBitsToo, WhenParametersAreHeldAfterTheForward) {
  config_.layout.reshard_after_forward = false;
  for (const std::string& schedule : schedule_names())
    for (const int64_t pp : {1, 2, 4}) {
      config_.layout.pp = pp;
      config_.layout.schedule = schedule;
      if (config_.layout.chunks() <= config_.model.layers + 2) expect_plain_bits();
    }
}
TEST_P(SameBitsToo, WithManyChunksARank) {
  config_.model.layers = 6;  // eight blocks
  for (const char* schedule : {"interleaved", "looped-bfs"})
    for (const auto& [pp, chunks] : {std::pair<int64_t, int64_t>{1, 8}, {2, 3}, {2, 4}, {4, 2}, {3, 1}}) {
      config_.layout.schedule = schedule;
      config_.layout.pp = pp;
      config_.layout.chunks_per_rank = chunks;
      expect_plain_bits();
    }
}
TEST_P(SameBitsToo, WhateverIsComputedAgain) {
  for (const char* rule : {"full", "selective", "every:2", "blocks:0-1,4-5"})
    for (const std::string& schedule : schedule_names())
      for (const int zero : {0, 3}) {
        config_.layout.recompute = rule;
        config_.layout.schedule = schedule;
        config_.layout.zero = zero;
        expect_plain_bits();
      }
}
// Every set of what can be, with everything else in turn: pieces of one element and more than there are, host and
// files.
TEST_P(SameBitsToo, WhateverIsOffloaded) {
  const TemporaryFolder folder;
  const std::vector<std::string> schedules = schedule_names();
  const std::array rules{"none", "full", "selective"};
  const std::array precisions{DType::Float32, DType::BFloat16, DType::Float16};
  size_t number = 0;
  for (const char* offload : {"optimizer", "params", "activations", "optimizer,params", "params,activations",
                              "optimizer,activations", "optimizer,params,activations"})
    for (const int zero : {0, 1, 2, 3}) {
      const size_t n = number++;
      config_.layout = tiny_layout(n % 2 == 0 ? 2 : 1, 2, zero, 3, n % 5 < 2 ? ReduceEvery::Step : ReduceEvery::Micro,
                                   schedules[n % schedules.size()]);
      config_.layout.offload = offload;
      config_.layout.offload_piece = std::array<int64_t, 4>{1000, 100'000, 4096, 77}[n % 4];
      config_.layout.recompute = rules[n % rules.size()];
      config_.layout.precision = precisions[n / 2 % precisions.size()];
      config_.layout.replicate = zero > 0 && n % 7 == 3 ? 2 : 1;
      config_.layout.reshard_after_forward = n % 3 != 1;
      config_.offload_to = n % 3 == 0 ? "host" : "nvme:" + folder.path().string();
      if (config_.layout.chunks() <= config_.model.layers + 2) expect_plain_bits();
    }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}
TEST_P(SameBitsToo, WithAZeroStageOfItsOwnForEachRank) {
  for (const std::vector<int>& zero : {std::vector<int>{3, 3, 2, 1}, {1, 0, 3, 2}, {3, 0, 0, 1}})
    for (const ReduceEvery reduce_every : {ReduceEvery::Micro, ReduceEvery::Step})
      for (const char* schedule : {"1f1b", "gpipe", "zb-h2"}) {
        config_.layout.pp = 4;
        config_.layout.zero_of_ranks = zero;
        config_.layout.reduce_every = reduce_every;
        config_.layout.schedule = schedule;
        expect_plain_bits();
      }
}
TEST_P(SameBitsToo, WithAReshardPolicyOfItsOwnForEachRank) {
  config_.layout.pp = 4;
  config_.layout.reshard_of_ranks = {true, false, false, true};
  for (const char* rule : {"none", "full"})
    for (const char* schedule : {"1f1b", "gpipe", "zb-h2"}) {
      config_.layout.recompute = rule;
      config_.layout.schedule = schedule;
      config_.layout.zero_of_ranks.clear();
      expect_plain_bits();
      config_.layout.zero_of_ranks = {3, 3, 1, 3};
      expect_plain_bits();
    }
}
TEST_P(SameBitsToo, InCopiesOfShardGroups) {
  for (const auto& [dp, replicate] : {std::pair<int64_t, int64_t>{2, 2}, {4, 2}, {4, 4}, {6, 3}, {8, 2}})
    for (const int zero : {1, 2, 3})
      for (const ReduceEvery reduce_every : {ReduceEvery::Micro, ReduceEvery::Step}) {
        config_.layout = tiny_layout(2, dp, zero, 2, reduce_every);
        config_.layout.replicate = replicate;
        expect_plain_bits();
      }
}
TEST_P(SameBitsToo, WithDropout) {
  if (config_.model.family == Family::Llama) GTEST_SKIP() << "has none";
  config_.model.dropout = 0.2;
  const std::vector<std::string> schedules = schedule_names();
  const std::array rules{"none", "full", "selective"};
  size_t number = 0;
  for (const DType precision : {DType::Float32, DType::BFloat16, DType::Float16})
    for (const int64_t pp : {1, 2, 4})
      for (const int zero : {0, 2, 3}) {
        config_.layout = tiny_layout(pp, 2, zero, 3, default_reduce_every(zero), schedules[number % schedules.size()]);
        config_.layout.recompute = rules[number++ % rules.size()];
        config_.layout.precision = precision;
        if (config_.layout.chunks() <= config_.model.layers + 2) expect_plain_bits();
      }
}
TEST_P(SameBitsToo, OfUnevenStages) {
  for (const std::vector<int64_t>& stages :
       {std::vector<int64_t>{1, 5}, {5, 1}, {1, 1, 4}, {2, 3, 1}, {1, 1, 1, 1, 1, 1}}) {
    config_.layout.pp = static_cast<int64_t>(stages.size());
    config_.layout.stages = stages;
    expect_plain_bits();
  }
}
TEST_P(SameBitsToo, WithSgd) {
  config_.optimizer.optimizer = OptimizerKind::Sgd;
  for (const int zero : {0, 1, 2, 3}) {
    config_.layout.zero = zero;
    expect_plain_bits();
  }
}
TEST_P(SameBitsToo, OfSeveralSequencesAMicroBatch) {
  config_.layout.micro_batch_size = 3;
  config_.layout.global_batch_size = 3 * 2 * 2;
  for (const int zero : {0, 1, 2, 3}) {
    config_.layout.zero = zero;
    expect_plain_bits();
  }
}
TEST_P(SameBitsToo, WithoutClipping) {
  config_.optimizer.grad_clip = 0;
  expect_plain_bits();
}
INSTANTIATE_TEST_SUITE_P(Models, SameBitsToo, testing::Values<std::string>("gpt2", "llama", "llamatied"),
                         [](const auto& tested) { return tested.param; });

// A comparison that cannot fail proves nothing: another seed, cadence or data-parallel size is another course.
TEST(SameBitsComparison, DifferentRunsDiffer) {
  const RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(2, 2, 3, 3, ReduceEvery::Micro));
  const Course course = train(config);
  RunConfig other = config;
  other.seed = 8;
  EXPECT_FALSE(same_bits(course, train_plain(other)));
  other = config;
  other.layout.reduce_every = ReduceEvery::Step;
  EXPECT_FALSE(same_bits(course, train_plain(other)));
  other = config;
  other.optimizer.grad_clip = 0.6;
  EXPECT_FALSE(same_bits(course, train_plain(other)));
}

}  // namespace
}  // namespace shardpipe
