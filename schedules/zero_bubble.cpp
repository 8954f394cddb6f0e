// ZB-H1 and ZB-H2, the handcrafted zero-bubble schedules (Qi et al., Zero Bubble Pipeline Parallelism,
// arXiv:2401.10241, section 2, figures 2 and 3): 1F1B with split backwards. The rank before waits for the input part
// alone, and weight parts fill what was a bubble.
//
//   rank 0  F0 F1 .. I0 W0 F2 I1 W1 I2 W2      (ZB-H1, p = 2, m = 3)
//   rank 1  .. F0 I0 F1 I1 W0 F2 I2 W1 W2
//
// H1 warms up with p-1-r forwards on rank r, as 1F1B does, and puts off r weight parts, so no rank holds more than p
// micro-batches whose weight part has not run. H2 warms up with twice as many and puts off twice as many: no rank waits
// between its first forward and its last weight part, for the activations of 2p-1 micro-batches.
#include <algorithm>
#include <utility>

#include "schedules/schedule.h"

namespace shardpipe {
namespace {

// warm_up: forwards before the first backward for each later rank; weight parts put off for each earlier one.
Schedule zero_bubble(std::string name, const ScheduleRequest& request, int warm_up) {
  Schedule schedule{.name = std::move(name),
                    .chunks = request.ranks,
                    .micro_batches = request.micro_batches,
                    .rank_of_chunk = {},
                    .by_rank = {}};
  for (uint16_t rank = 0; rank < request.ranks; ++rank) {
    schedule.rank_of_chunk.push_back(rank);
    std::vector<Cell>& cells = schedule.by_rank.emplace_back();
    const int put_off = warm_up * rank;
    uint16_t forward = 0, weight = 0;
    const int before = std::min<int>(request.micro_batches, warm_up * (request.ranks - 1 - rank));
    while (forward < before) cells.push_back({Pass::Forward, rank, forward++});
    for (uint16_t input = 0; input < request.micro_batches; ++input) {
      if (forward < request.micro_batches) cells.push_back({Pass::Forward, rank, forward++});
      cells.push_back({Pass::BackwardInput, rank, input});
      if (input >= put_off) cells.push_back({Pass::BackwardWeight, rank, weight++});
    }
    while (weight < request.micro_batches) cells.push_back({Pass::BackwardWeight, rank, weight++});
  }
  return schedule;
}

}  // namespace

Schedule zb_h1(const ScheduleRequest& request) { return zero_bubble("zb-h1", request, 1); }
Schedule zb_h2(const ScheduleRequest& request) { return zero_bubble("zb-h2", request, 2); }

}  // namespace shardpipe
