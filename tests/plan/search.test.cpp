#include "plan/search.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "plan/sketch.h"

namespace shardpipe {
namespace {

struct Question {
  const char* model;
  const char* device;
  int64_t devices, batch;
  uint64_t memory;
  PlanRequest of(const Model& made) const {
    PlanRequest request{.model = &made, .cluster = cluster_of(device_preset(device))};
    request.devices = devices;
    request.global_batch_size = batch;
    request.memory_limit = memory;
    return request;
  }
};

constexpr uint64_t plenty = uint64_t{1} << 60;

// Small and large models, one node and several, memory that is short and that is not, numbers that divide badly.
std::vector<Question> questions() {
  return {{"gpt2-tiny", "a100-40g", 4, 8, plenty},
          {"gpt2-124m", "a100-40g", 1, 8, 8'000'000'000},
          {"gpt2-124m", "h100", 16, 32, 3'000'000'000}};
}
std::vector<Question> larger_questions() {
  return {{"llama-1b", "a100-80g", 12, 36, 12'000'000'000},
          {"gpt2-350m", "h200", 6, 30, 4'000'000'000},
          {"llama-8b", "h100", 8, 16, 70'000'000'000},
          {"gpt2-1.5b", "a100-40g", 32, 64, 6'000'000'000}};
}

class PlanQuestions : public testing::TestWithParam<Question> {
 protected:
  const Model model_ = make_model(model_preset(GetParam().model));
  const PlanRequest request_ = GetParam().of(model_);
};

TEST_P(PlanQuestions, EveryCandidateBreaksNoRuleAndUsesAllDevices) {
  for (const bool offload : {false, true}) {
    const std::vector<Layout> layouts = candidate_layouts(request_, offload);
    std::set<std::string> different;
    for (const Layout& layout : layouts) {
      EXPECT_THAT(problems_of(layout, model_), testing::IsEmpty());
      EXPECT_EQ(layout.ranks(), request_.devices);
      EXPECT_EQ(layout.global_batch_size, request_.global_batch_size);
      EXPECT_EQ(layout.offload != "none", offload);
      different.insert(fmt::format("{} {} {} {} {} {} {} {} {} {}", layout.pp, layout.dp, layout.replicate, layout.zero,
                                   layout.schedule, layout.chunks_per_rank, layout.micro_batch_size,
                                   static_cast<int>(layout.reduce_every), layout.recompute, layout.offload));
    }
    EXPECT_EQ(different.size(), layouts.size()) << "none twice";
    EXPECT_FALSE(layouts.empty());
  }
}

// The bytes of what is found are those of the programs that train with it.
TEST_P(PlanQuestions, WhatIsFoundFitsAndIsInOrder) {
  const PlanResult result = plan(request_);
  ASSERT_FALSE(result.best.empty());
  EXPECT_LE(result.best.size(), request_.keep);
  double before = 0;
  for (const PricedLayout& priced : result.best) {
    const StepShape shape = step_shape(model_, priced.layout, 2);
    const Program training = compile(shape), evaluation = compile(evaluation_shape(shape, training));
    uint64_t largest = 0;
    for (const Program* program : {&training, &evaluation})
      for (const RankProgram& rank : program->by_pipeline_rank) largest = std::max(largest, rank.arena_bytes);
    EXPECT_EQ(priced.peak_bytes, largest);
    EXPECT_LE(priced.peak_bytes, request_.memory_limit);
    EXPECT_GE(priced.step_seconds, before);
    before = priced.step_seconds;
    EXPECT_DOUBLE_EQ(priced.arithmetic + priced.exposed + priced.exposed_store + priced.idle, 1);
    EXPECT_GT(priced.utilisation, 0);
    EXPECT_LE(priced.utilisation, 1);
    EXPECT_DOUBLE_EQ(priced.tokens_per_second * priced.step_seconds,
                     static_cast<double>(request_.global_batch_size * model_.config.seq_len));
  }
}

TEST_P(PlanQuestions, TheAnswerDoesNotDependOnTheNumberOfThreads) {
  PlanRequest alone = request_, many = request_;
  alone.threads = 1;
  many.threads = 5;
  const PlanResult a = plan(alone), b = plan(many);
  EXPECT_EQ(a.compiled, b.compiled);
  ASSERT_EQ(a.best.size(), b.best.size());
  for (size_t i = 0; i < a.best.size(); ++i) {
    EXPECT_EQ(a.best[i].layout, b.best[i].layout);
    EXPECT_EQ(a.best[i].step_seconds, b.best[i].step_seconds);
  }
}

std::string name_of(const testing::TestParamInfo<Question>& instance) {
  std::string name = fmt::format("{}On{}", instance.param.model, instance.param.devices);
  std::erase_if(name, [](char c) { return !isalnum(static_cast<unsigned char>(c)); });
  return name;
}
INSTANTIATE_TEST_SUITE_P(Some, PlanQuestions, testing::ValuesIn(questions()), name_of);
INSTANTIATE_TEST_SUITE_P(Slow, PlanQuestions, testing::ValuesIn(larger_questions()), name_of);

// Sketches may be wrong, answers may not: what is found is as fast as the fastest of all, compiled one by one.
class PlanExhaustiveSlow : public PlanQuestions {};
TEST_P(PlanExhaustiveSlow, WhatIsFoundIsTheFastestOfAll) {
  PlanRequest all = request_;
  all.keep = all.most_compiled = SIZE_MAX;
  const PlanResult every = plan(all), found = plan(request_);
  EXPECT_GE(every.compiled, found.compiled);
  for (size_t i = 0; i < std::min(found.best.size(), every.best.size()); ++i)
    EXPECT_LE(found.best[i].step_seconds, 1.02 * every.best[i].step_seconds) << "row " << i + 1;
}
INSTANTIATE_TEST_SUITE_P(Some, PlanExhaustiveSlow,
                         testing::Values(Question{"gpt2-tiny", "a100-40g", 4, 8, plenty},
                                         Question{"gpt2-124m", "h100", 16, 32, 3'000'000'000},
                                         Question{"llama-8b", "h100", 8, 16, 70'000'000'000}),
                         name_of);

// Bytes: near, and seldom far above, so that little is left out that would fit. Seconds: seldom above, so that little
// is left out that would be faster.
TEST_P(PlanExhaustiveSlow, SketchesAreNearTheTruth) {
  Sketcher sketcher(model_, request_.cluster, request_.optimizer_states_per_element);
  const std::vector<Layout> layouts = candidate_layouts(request_, false);
  size_t looked_at = 0, near = 0, not_above = 0;
  for (size_t i = 0; i < layouts.size(); i += 5, ++looked_at) {
    const Sketch sketch = sketcher.sketch(layouts[i]);
    const PricedLayout priced = price(request_, simulate_step(request_, layouts[i]));
    const double bytes = sketch.bytes / static_cast<double>(priced.peak_bytes);
    EXPECT_GT(bytes, 0.8) << i;
    EXPECT_LT(bytes, 1.7) << i;
    EXPECT_LT(sketch.seconds, 1.3 * priced.step_seconds) << i;
    near += bytes < 1.25;
    not_above += sketch.seconds < 1.1 * priced.step_seconds;
  }
  EXPECT_GE(near, looked_at * 9 / 10);
  EXPECT_GE(not_above, looked_at * 9 / 10);
}

// Equal stages and free communication: (p-1) / (m+p-1) of the step is idle, with v chunks a rank (p-1) / (vm+p-1).
TEST(Plan, TheIdleShareOfEqualStagesIsTheClosedForm) {
  ModelConfig config = model_preset("gpt2-tiny");
  config.layers = 8, config.hidden = 512, config.ffn = 2048, config.vocab_size = 1;  // a head that is next to nothing
  const Model model = make_model(config);
  PlanRequest request = Question{"", "a100-40g", 4, 0, plenty}.of(model);
  Device& device = request.cluster.device;
  device.products = {{1, 0.5}};
  device.memory_bytes_per_second = INFINITY;
  device.link = request.cluster.between = {0, 0};
  for (const auto& [schedule, v] : {std::pair{"gpipe", 1}, {"1f1b", 1}, {"interleaved", 2}})
    for (const int64_t m : {4, 8, 16}) {
      Layout layout{.pp = 4};
      layout.schedule = schedule;
      layout.chunks_per_rank = v;
      layout.stages.assign(static_cast<size_t>(4 * v), 8 / (4 * v));
      ++layout.stages.front();
      ++layout.stages.back();
      layout.micro_batch_size = 1;
      layout.global_batch_size = m;
      layout.precision = DType::BFloat16;
      const PricedLayout priced = price(request, simulate_step(request, layout));
      const double idle = 3.0 / static_cast<double>(v * m + 3);
      EXPECT_NEAR(priced.idle, idle, 1e-3) << schedule << " " << m;
      EXPECT_NEAR(priced.arithmetic, 1 - idle, 1e-3);
      EXPECT_NEAR(priced.exposed, 0, 1e-9);
      EXPECT_NEAR(priced.utilisation, 0.5 * (1 - idle), 1e-2) << "half of the peak while it computes";
    }
}

TEST(PlanSlow, MoreMemoryIsNeverSlower) {
  const Model model = make_model(model_preset("gpt2-350m"));
  double before = INFINITY;
  for (const uint64_t gigabytes : {2, 3, 4, 6, 8, 12, 16, 24}) {
    PlanRequest request = Question{"gpt2-350m", "a100-40g", 8, 32, gigabytes * 1'000'000'000}.of(model);
    request.keep = 1;
    const PlanResult result = plan(request);
    ASSERT_EQ(result.best.size(), 1u);
    EXPECT_LE(result.best.front().step_seconds, 1.001 * before) << gigabytes;
    before = result.best.front().step_seconds;
  }
}

TEST(Plan, OffloadsOnlyWhereNothingElseFits) {
  const Model model = make_model(model_preset("gpt2-350m"));
  const auto best = [&](uint64_t memory) {
    return plan(Question{"gpt2-350m", "a100-40g", 1, 4, memory}.of(model)).best;
  };
  const std::vector<PricedLayout> without = best(20'000'000'000), with = best(5'000'000'000);
  ASSERT_FALSE(without.empty());
  ASSERT_FALSE(with.empty());
  for (const PricedLayout& priced : without) EXPECT_EQ(priced.layout.offload, "none");
  for (const PricedLayout& priced : with) EXPECT_NE(priced.layout.offload, "none");
  for (const PricedLayout& priced : without) EXPECT_EQ(priced.exposed_store, 0);
  EXPECT_GT(std::ranges::max(with, {}, &PricedLayout::exposed_store).exposed_store, 0.1) << "PCIe shows";
  EXPECT_GT(with.front().step_seconds, without.front().step_seconds);
}

TEST(Plan, WhereNothingFitsNothingIsFound) {
  const Model model = make_model(model_preset("gpt2-tiny"));
  const PlanResult result = plan(Question{"gpt2-tiny", "h100", 4, 8, 1000}.of(model));
  EXPECT_TRUE(result.best.empty());
  EXPECT_GT(result.combinations, 0u);
}

TEST(Plan, ABatchThatNoReplicasCanShareHasNoLayout) {
  const Model model = make_model(model_preset("gpt2-tiny"));  // six blocks: pp is 1, for 7 divides nothing else
  const PlanRequest request = Question{"gpt2-tiny", "h100", 7, 8, plenty}.of(model);
  EXPECT_TRUE(candidate_layouts(request, false).empty());
  EXPECT_EQ(fewest_replicas(request), 7);
}

TEST(Plan, TellsHowFarItHasCome) {
  const Model model = make_model(model_preset("gpt2-tiny"));
  PlanProgress last;
  plan(Question{"gpt2-tiny", "h100", 4, 8, plenty}.of(model), [&](const PlanProgress& now) {
    EXPECT_GE(now.sketched, last.sketched);
    EXPECT_GE(now.compiled, last.compiled);
    EXPECT_LE(now.sketched, now.combinations);
    EXPECT_LE(now.compiled, now.promising);
    last = now;
  });
  EXPECT_GT(last.compiled, 0u);
}

}  // namespace
}  // namespace shardpipe
