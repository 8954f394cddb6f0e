// Published bubbles out of the very Program that trains: compiled, then simulated under the convention of those figures
// (published_channels). tests/schedules/published.test.cpp has all rows and their source, by the clock of schedules.
#include <gtest/gtest.h>

#include "program/cases.h"
#include "program/figures.h"
#include "program/simulate.h"

namespace shardpipe {
namespace {

struct Row {
  const char* model;
  uint16_t p, m;
  double forward, input, weight, transfer;  // of a rank's whole stage, microseconds
  double one_f_one_b, zb_h1, zb_h2;
};
constexpr Row rows[] = {
    {"1.5B", 8, 24, 18522, 18086, 9337, 601, .2431, .1585, .1083},
    {"6.2B", 8, 64, 29935, 29621, 19388, 535, .1091, .0554, .0294},
    {"14.6B", 16, 48, 11347, 11248, 8132, 377, .2552, .1397, .0672},
    {"28.3B", 32, 96, 2 * 9458, 2 * 9748, 2 * 7288, 879, .2676, .1429, .0629},
};

// A layer a stage; the embedding before the first and the head after the last take no time, so that all are alike.
StepFigures figures_of(const char* schedule, const Row& row, double transfer) {
  const Model model = tiny_model(row.p, false);
  Layout layout = tiny_layout(schedule, row.p, row.m, 0, ReduceEvery::Step, 1);
  layout.chunks_per_rank = 1;
  layout.stages.assign(row.p, 1);
  ++layout.stages.front();
  ++layout.stages.back();
  StepShape shape = step_shape(model, layout, 2);
  shape.schedule = make_schedule(schedule, {.ranks = row.p,
                                            .micro_batches = row.m,
                                            .chunks_per_rank = 1,
                                            .costs = {row.forward, row.input, row.weight, transfer}});
  const CostModel costs{.blocks = fixed_block_seconds(model, {}, {row.forward, row.input, row.weight}, {}),
                        .message = {transfer, 0},
                        .collective = {},
                        .update = {},
                        .dp = 1};
  const Program program = compile(shape);
  return step_figures(program, simulate(program, costs, published_channels));
}

// Of 1F1B and ZB-H1 the step is from the first begin to the last end. ZB-H2 may begin a rank's next step before the
// others have ended theirs: there the longest time of one rank counts.
TEST(PublishedProgram, BubblesOfMeasuredTimesAreTheAuthorsToFourDecimals) {
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message() << row.model << " p " << row.p << " m " << row.m);
    EXPECT_NEAR(figures_of("1f1b", row, row.transfer).bubble, row.one_f_one_b, 0.5e-4);
    EXPECT_NEAR(figures_of("zb-h1", row, row.transfer).bubble, row.zb_h1, 0.5e-4);
    EXPECT_NEAR(figures_of("zb-h2", row, row.transfer).bubble_of_own_span, row.zb_h2, 0.5e-4);
  }
}

TEST(PublishedProgram, MessagesOfTheSteadyStateAreExposed) {
  EXPECT_NEAR(figures_of("1f1b", rows[0], 0).bubble, .2258, 0.5e-4);
  EXPECT_NEAR(figures_of("1f1b", rows[0], rows[0].transfer).bubble, .2431, 0.5e-4);
}

}  // namespace
}  // namespace shardpipe
