// Cuts the blocks into stages so that the slowest stage is as fast as it can be: it sets the pace of the whole
// pipeline.
#include <bit>
#include <limits>

#include "base/error.h"
#include "layout/layout.h"

namespace shardpipe {
namespace {

// Cost of blocks [begin, end) is before[end] - before[begin]; both searches below use this one difference, so they
// agree to the bit.
std::vector<double> cumulative_costs(const Model& model, MicroBatchShape shape) {
  std::vector<double> before{0.0};
  for (const Block& block : model.blocks) before.push_back(before.back() + forward_flops(model, block, shape));
  return before;
}

bool fits(const std::vector<double>& before, int64_t count, double largest) {
  int64_t stages = 1;
  size_t begin = 0;
  for (size_t end = 1; end < before.size(); ++end) {
    if (before[end] - before[begin] <= largest) continue;
    begin = end - 1;
    if (++stages > count || before[end] - before[begin] > largest) return false;
  }
  return true;  // fewer stages than `count` can always be cut further
}

// The smallest double that fits, by bisection over bit patterns: doubles >= 0 are ordered as their bits are.
double smallest_largest_cost(const std::vector<double>& before, int64_t count) {
  uint64_t low = 0, high = std::bit_cast<uint64_t>(before.back());
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (fits(before, count, std::bit_cast<double>(middle)))
      high = middle;
    else
      low = middle + 1;
  }
  return std::bit_cast<double>(high);
}

}  // namespace

std::vector<int64_t> balanced_stages(const Model& model, int64_t count, MicroBatchShape shape) {
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  check_invariant(1 <= count && count <= blocks, "cannot cut {} blocks into {} stages", blocks, count);
  const std::vector<double> before = cumulative_costs(model, shape);
  const double largest = smallest_largest_cost(before, count);

  // unevenness[s][e]: the least sum of squared stage costs over cuts of blocks [0, e) into s stages, none above
  // `largest`. The sum of costs is fixed, so the least sum of squares is the least variance. begin_of[s][e]: where the
  // last of those stages begins.
  constexpr double impossible = std::numeric_limits<double>::infinity();
  std::vector<double> unevenness(blocks + 1, impossible), previous;
  unevenness[0] = 0;
  std::vector<std::vector<int32_t>> begin_of(count + 1, std::vector<int32_t>(blocks + 1, -1));
  for (int64_t stage = 1; stage <= count; ++stage) {
    previous.assign(blocks + 1, impossible);
    previous.swap(unevenness);
    for (int64_t end = stage; end <= blocks; ++end) {
      for (int64_t begin = end - 1; begin >= stage - 1; --begin) {
        const double cost = before[end] - before[begin];
        if (cost > largest) break;
        const double candidate = previous[begin] + cost * cost;
        if (candidate < unevenness[end]) {
          unevenness[end] = candidate;
          begin_of[stage][end] = static_cast<int32_t>(begin);
        }
      }
    }
  }

  std::vector<int64_t> stages(count);
  int64_t end = blocks;
  for (int64_t stage = count; stage >= 1; --stage) {
    const int64_t begin = begin_of[stage][end];
    check_invariant(begin >= 0, "no cut of {} blocks into {} stages stays below {}", blocks, count, largest);
    stages[stage - 1] = end - begin;
    end = begin;
  }
  return stages;
}

}  // namespace shardpipe
