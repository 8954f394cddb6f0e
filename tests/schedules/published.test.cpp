// The bubbles that the authors of the zero-bubble schedules print (sail-sg/zero-bubble-pipeline-parallelism, branch
// arxiv, megatron/core/pipeline_parallel/efficiency.py): measured times in microseconds, bubble = 1 - m(F+I+W)/cost. A
// transfer delays its reader and occupies no rank. Cost: of 1F1B and ZB-H1 the time from 0 to the end; of ZB-H2 the
// longest time of one rank from its first cell, since the optimizer is no barrier.
#include <gtest/gtest.h>

#include <algorithm>

#include "schedules/timing.h"

namespace shardpipe {
namespace {

struct Row {
  const char* model;
  uint16_t p, m;
  double forward, input, weight, transfer;
  double one_f_one_b, zb_h1, zb_h2;
};
constexpr Row rows[] = {
    {"1.5B", 8, 24, 18522, 18086, 9337, 601, .2431, .1585, .1083},
    {"1.5B", 8, 32, 18513, 18086, 9331, 626, .1985, .1242, .0837},
    {"1.5B", 8, 64, 18546, 18097, 9321, 762, .1240, .0674, .0444},
    {"6.2B", 8, 24, 29718, 29444, 19927, 527, .2347, .1323, .0698},
    {"6.2B", 8, 32, 29802, 29428, 19530, 577, .1898, .1045, .0559},
    {"6.2B", 8, 64, 29935, 29621, 19388, 535, .1091, .0554, .0294},
    {"14.6B", 16, 48, 11347, 11248, 8132, 377, .2552, .1397, .0672},
    {"14.6B", 16, 64, 11307, 11254, 8101, 379, .2082, .1088, .0516},
    {"14.6B", 16, 128, 11325, 11308, 8109, 378, .1251, .0576, .0266},
    {"28.3B", 32, 96, 10419, 10207, 7715, 408, .2646, .1421, .0641},
    {"28.3B", 32, 128, 10408, 10204, 7703, 408, .2168, .1106, .0490},
    {"28.3B", 32, 256, 10402, 10248, 7698, 460, .1352, .0594, .0257},
    // Times of a chunk; a stage is two of them, its message one.
    {"6.2B", 16, 48, 2 * 14407, 2 * 14380, 2 * 9676, 1610, .2668, .1536, .0823},
    {"6.2B", 16, 64, 2 * 14412, 2 * 14393, 2 * 9688, 1621, .2206, .1198, .0630},
    {"6.2B", 16, 128, 2 * 14316, 2 * 14306, 2 * 9639, 1619, .1390, .0637, .0325},
    {"14.6B", 24, 72, 2 * 6763, 2 * 6969, 2 * 5251, 755, .2699, .1439, .0628},
    {"14.6B", 24, 96, 2 * 6783, 2 * 6984, 2 * 5259, 758, .2229, .1121, .0480},
    {"14.6B", 24, 192, 2 * 6785, 2 * 6990, 2 * 5260, 770, .1403, .0595, .0247},
    {"28.3B", 32, 96, 2 * 9458, 2 * 9748, 2 * 7288, 879, .2676, .1429, .0629},
    {"28.3B", 32, 128, 2 * 9469, 2 * 9744, 2 * 7306, 892, .2204, .1111, .0478},
    {"28.3B", 32, 256, 2 * 9447, 2 * 9644, 2 * 7193, 887, .1362, .0593, .0251},
};

double bubble(const char* name, const Row& row, double transfer, bool of_each_rank) {
  const PassCosts costs{row.forward, row.input, row.weight, transfer};
  const CellTimes times =
      time_cells(make_schedule(name, {.ranks = row.p, .micro_batches = row.m, .chunks_per_rank = 1, .costs = costs}),
                 std::span(&costs, 1));
  double cost = 0;
  for (const auto& rank : times) cost = std::max(cost, rank.back().end - (of_each_rank ? rank.front().begin : 0));
  return 1 - row.m * (row.forward + row.input + row.weight) / cost;
}

TEST(Published, BubblesOfMeasuredTimesAreTheAuthorsToFourDecimals) {
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message() << row.model << " p " << row.p << " m " << row.m);
    EXPECT_NEAR(bubble("1f1b", row, row.transfer, false), row.one_f_one_b, 0.5e-4);
    EXPECT_NEAR(bubble("zb-h1", row, row.transfer, false), row.zb_h1, 0.5e-4);
    EXPECT_NEAR(bubble("zb-h2", row, row.transfer, true), row.zb_h2, 0.5e-4);
  }
}

// Messages of the steady state count: .2258 is what a model without them says of the first row.
TEST(Published, TransfersInTheSteadyStateAreExposed) {
  EXPECT_NEAR(bubble("1f1b", rows[0], 0, false), .2258, 0.5e-4);
  EXPECT_NEAR(bubble("1f1b", rows[0], rows[0].transfer, false), .2431, 0.5e-4);
}

}  // namespace
}  // namespace shardpipe
