#include "program/compile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "program/cases.h"
#include "program/check.h"
#include "program/text.h"

namespace shardpipe {
namespace {

// compile() throws with the first finding; here all of them are told, with the layout.
void expect_sound(const StepShape& shape, const std::string& name) {
  Program program;
  for (const CompilerPass& pass : passes()) program = pass.run(std::move(program), shape);
  for (const Finding& finding : check(program)) ADD_FAILURE() << name << ": " << finding.rule << ": " << finding.where;
  EXPECT_NO_THROW(compile(shape)) << name;
}

TEST(Compile, EveryLayoutOfTheGridIsSound) {
  int cases = 0;
  for_each_case([&](const Case& c) {
    if (testing::Test::HasFailure()) return;  // the smallest layout that shows it is enough
    expect_sound(c.shape(), c.name);
    ++cases;
  });
  EXPECT_EQ(cases, 17'600);  // 4 schedules × 5 depths, and 6 of two chunks a rank × 4, each of 400 layouts
}

TEST(Compile, MoreStagesThanMicroBatchesAndManyStages) {
  for (const bool tied : {true, false}) {
    const Model model = tiny_model(14, tied);  // 16 blocks
    for (const char* schedule : {"gpipe", "1f1b"})
      for (const auto& [pp, m] : {std::pair(4, 1), {4, 2}, {4, 3}, {8, 1}, {16, 1}, {16, 3}})
        for (const int zero : {0, 3}) {
          const Layout layout = tiny_layout(schedule, pp, m, zero, default_reduce_every(zero));
          expect_sound(step_shape(model, layout, 2), to_string(layout));
        }
  }
}

TEST(Compile, UnevenStages) {
  const Model model = tiny_model(6, true);
  for (const std::vector<int64_t>& stages :
       {std::vector<int64_t>{1, 7}, {7, 1}, {1, 6, 1}, {3, 4, 1}, {1, 1, 1, 5}, {1, 1, 1, 1, 1, 1, 1, 1}})
    for (const char* schedule : {"gpipe", "1f1b"})
      for (const int zero : {0, 1, 2, 3}) {
        Layout layout = tiny_layout(schedule, static_cast<int64_t>(stages.size()), 3, zero, default_reduce_every(zero));
        layout.stages = stages;
        const StepShape shape = step_shape(model, layout, 2);
        expect_sound(shape, to_string(layout));
        const Program program = compile(shape);
        for (size_t s = 0; s < stages.size(); ++s)
          EXPECT_EQ(std::ranges::count(program.by_pipeline_rank[s].actions, Kind::Forward, &Action::kind),
                    3 * stages[s]);
      }
}

// 30 layers on 4 stages: the remainder is not dropped.
TEST(Compile, NoLayerIsLostBetweenStages) {
  const Model model = tiny_model(30, true);
  const Program program = compile(step_shape(model, tiny_layout("1f1b", 4, 5, 1, ReduceEvery::Step), 2));
  std::map<uint16_t, int> forwards, backwards;
  std::set<uint16_t> updated;
  for (const RankProgram& rank : program.by_pipeline_rank)
    for (const Action& action : rank.actions) {
      if (action.kind == Kind::Forward) ++forwards[action.index];
      if (action.kind == Kind::Backward) ++backwards[action.index];
      if (action.kind == Kind::OptimizerStep) updated.insert(action.index);
    }
  EXPECT_EQ(forwards.size(), 32u);  // embedding, 30 layers, head
  for (uint16_t b = 0; b < 32; ++b) {
    EXPECT_EQ(forwards[b], 5) << b;
    EXPECT_EQ(backwards[b], 5) << b;
  }
  EXPECT_EQ(updated.size(), model.groups.size());
}

TEST(Compile, LlamaTiedAndUntied) {
  for (const bool tied : {true, false}) {
    ModelConfig config = tiny_model(4, tied).config;
    config.family = Family::Llama;
    const Model model = make_model(config);
    for (const int64_t pp : {1, 2, 3, 6})
      for (const int zero : {0, 1, 2, 3}) {
        const Layout layout = tiny_layout("1f1b", pp, 3, zero, default_reduce_every(zero));
        expect_sound(step_shape(model, layout, 2), to_string(layout));
      }
  }
}

// An evaluation lies in the arena of the training step, and finds the parameters where that left them.
TEST(Compile, EvaluationsAreSoundAndKeepResidentsInPlace) {
  for_each_case(
      [](const Case& c) {
        if (testing::Test::HasFailure()) return;
        const StepShape shape = c.shape();
        const Program training = compile(shape);
        const StepShape evaluation = evaluation_shape(shape, training);
        expect_sound(evaluation, c.name);
        const Program program = compile(evaluation);
        for (size_t r = 0; r < program.by_pipeline_rank.size(); ++r)
          for (const Buffer& buffer : program.by_pipeline_rank[r].buffers)
            if (buffer.resident) {
              const std::vector<Buffer>& buffers = training.by_pipeline_rank[r].buffers;
              EXPECT_NE(std::ranges::find(buffers, buffer), buffers.end())
                  << c.name << ", rank " << r << ": " << name_of(buffer);
            }
      },
      11);
}

// 16 stages of 64 replicas: 1,024 ranks share 16 programs.
TEST(Compile, AProgramForAThousandRanksIsSound) {
  ModelConfig config = tiny_model(78, true).config;
  config.hidden = 64;
  config.ffn = 256;
  const Model model = make_model(config);
  const StepShape shape = step_shape(model, tiny_layout("1f1b", 16, 64, 3, ReduceEvery::Micro, 64), 2);
  const Program program = compile(shape);
  EXPECT_EQ(program.by_pipeline_rank.size(), 16u);
}

}  // namespace
}  // namespace shardpipe
