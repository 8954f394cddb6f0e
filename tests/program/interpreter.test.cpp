// What every layout computes, and that no timing changes it: see interpreter.h.
#include "program/interpreter.h"

#include <gtest/gtest.h>

#include "program/cases.h"

namespace shardpipe {
namespace {

// The step of ZeRO stage 0 on one pipeline rank.
Outcome plain(const Layout& like, const Model& model, Symbols& symbols) {
  Layout layout = like;
  layout.pp = 1;
  layout.zero = 0;
  layout.schedule = "gpipe";
  layout.stages.clear();
  const StepShape shape = step_shape(model, layout, 2);
  return interpret(compile(shape), shape, symbols, 1, true);
}

void expect_complete(const Outcome& outcome, const std::string& name) {
  ASSERT_TRUE(outcome.finished) << name;
  EXPECT_EQ(outcome.disagreement, "") << name;
  EXPECT_NE(outcome.scalars, Symbols::garbage) << name;
}

TEST(Interpreter, AStepOfOneRankIsTheTextbookSum) {
  // Two replicas of two micro-batches, reduced once a step: (m0 + m1 of replica 0) + (m0 + m1 of replica 1).
  const Model model = tiny_model(1, false);
  Symbols symbols;
  const StepShape shape = step_shape(model, tiny_layout("1f1b", 1, 2, 0, ReduceEvery::Step), 2);
  const Outcome outcome = interpret(compile(shape), shape, symbols, 1);
  expect_complete(outcome, "plain");
  const Symbol updated = symbols.shards(outcome.parameters.at(1), 2)[0];
  std::string text = symbols.text(updated, 3);
  EXPECT_TRUE(
      text.starts_with("next(P g1/0, +(+(B b1 gradient g1.0/0(…, …, …, …), B b1 gradient g1.0/0(…, …, …, …)), "
                       "+(B b1 gradient g1.0/0(…, …, …, …), B b1 gradient g1.0/0(…, …, …, …))), clip("))
      << text;
}

// The parameters' expressions hold every operand down to tokens, replica and micro-batch, so equality is of everything.
TEST(SameExpressions, AcrossPipelinesSchedulesZeroStagesAndReshardPolicies) {
  std::map<std::string, Outcome> references;  // one table of symbols for each, so that the tests stay small
  std::map<std::string, Symbols> tables;
  int cases = 0;
  for_each_case(
      [&](const Case& c) {
        if (testing::Test::HasFailure()) return;
        // Exact sums are the same in both cadences.
        const std::string cadence = c.layout.reproducible                         ? "exact"
                                    : c.layout.reduce_every == ReduceEvery::Micro ? "micro"
                                                                                  : "step";
        const std::string key = fmt::format("{} {} {} {} {}", c.layout.dp, c.layout.micro_batches(), cadence,
                                            to_string(c.layout.reduce_dtype), c.model.config.tied_embeddings);
        Symbols& symbols = tables[key];
        if (!references.contains(key)) {
          references[key] = plain(c.layout, c.model, symbols);
          expect_complete(references[key], key);
        }
        const StepShape shape = c.shape();
        const Outcome outcome = interpret(compile(shape), shape, symbols, 7);
        expect_complete(outcome, c.name);
        EXPECT_EQ(difference(outcome, references[key], symbols), "") << c.name;
        ++cases;
      },
      7);
  EXPECT_GT(cases, 400);
}

TEST(SameExpressions, WhateverTheDelaysOfLanes) {
  const Model model = tiny_model(3, true);
  for (const auto& [schedule, pp, zero, reduce_every] : {std::tuple("1f1b", 2, 3, ReduceEvery::Micro),
                                                         {"1f1b", 3, 1, ReduceEvery::Step},
                                                         {"gpipe", 2, 2, ReduceEvery::Micro},
                                                         {"1f1b", 1, 2, ReduceEvery::Step}}) {
    const StepShape shape = step_shape(model, tiny_layout(schedule, pp, 3, zero, reduce_every), 2);
    const Program program = compile(shape);
    Symbols symbols;
    const Outcome in_order = interpret(program, shape, symbols, 0, true);
    expect_complete(in_order, to_string(shape.layout));
    for (uint32_t seed = 1; seed <= 40; ++seed)
      ASSERT_EQ(difference(interpret(program, shape, symbols, seed), in_order, symbols), "")
          << to_string(shape.layout) << ", seed " << seed;
  }
}

TEST(SameExpressions, CadenceChangesTheOrderOfSumsAndOnlyThat) {
  const Model model = tiny_model(1, true);
  Symbols symbols;
  const Outcome micro = plain(tiny_layout("1f1b", 1, 2, 0, ReduceEvery::Micro), model, symbols);
  const Outcome step = plain(tiny_layout("1f1b", 1, 2, 0, ReduceEvery::Step), model, symbols);
  EXPECT_NE(micro, step);  // so a test that mixed cadences would notice
  EXPECT_EQ(plain(tiny_layout("1f1b", 1, 1, 0, ReduceEvery::Micro), model, symbols),
            plain(tiny_layout("1f1b", 1, 1, 0, ReduceEvery::Step), model, symbols));  // one micro-batch: the same sum
}

}  // namespace
}  // namespace shardpipe
