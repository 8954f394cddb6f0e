#include "kernels/cpu/cross_entropy.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;

LossSum cross_entropy_forward(const float* logits, const int32_t* targets, float* log_sum_exp, int64_t tokens,
                              int64_t vocabulary) {
  const Floats d;
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  LossSum sum;
  for (int64_t token = 0; token < tokens; ++token) {
    const float* row = logits + token * vocabulary;
    V maximum = hn::Set(d, lowest);
    for_each_vector(d, vocabulary, [&](int64_t i, auto lanes) HWY_ATTR {
      maximum = hn::Max(maximum, lanes.load_or(d, row + i, lowest));
    });
    maximum = hn::MaxOfLanes(d, maximum);
    V exponentials = hn::Zero(d);
    for_each_vector(d, vocabulary, [&](int64_t i, auto lanes) HWY_ATTR {
      const V e = exponential(d, hn::Sub(lanes.load(d, row + i), maximum));
      exponentials = hn::Add(exponentials, lanes.zero_others(d, e));
    });
    const double row_maximum = hn::GetLane(maximum);
    const double log_sum = std::log(double{hn::GetLane(hn::SumOfLanes(d, exponentials))});
    log_sum_exp[token] = static_cast<float>(row_maximum + log_sum);
    if (targets[token] == ignored_target) continue;
    sum.loss += log_sum - (double{row[targets[token]]} - row_maximum);
    sum.tokens += 1;
  }
  return sum;
}

void cross_entropy_backward_input(float* logits, const int32_t* targets, const float* log_sum_exp, int64_t tokens,
                                  int64_t vocabulary) {
  const Floats d;
  for (int64_t token = 0; token < tokens; ++token) {
    float* row = logits + token * vocabulary;
    if (targets[token] == ignored_target) {
      for_each_vector(d, vocabulary, [&](int64_t i, auto lanes) HWY_ATTR { lanes.store(hn::Zero(d), d, row + i); });
      continue;
    }
    const V log_sum = hn::Set(d, log_sum_exp[token]);
    for_each_vector(d, vocabulary, [&](int64_t i, auto lanes) HWY_ATTR {
      lanes.store(exponential(d, hn::Sub(lanes.load(d, row + i), log_sum)), d, row + i);
    });
    row[targets[token]] -= 1.0f;
  }
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

HWY_EXPORT(cross_entropy_forward);
HWY_EXPORT(cross_entropy_backward_input);

static void check_targets(const int32_t* targets, int64_t tokens, int64_t vocabulary) {
  for (int64_t token = 0; token < tokens; ++token) {
    if (targets[token] == ignored_target || (targets[token] >= 0 && targets[token] < vocabulary)) continue;
    throw std::out_of_range(fmt::format("target {} at place {} is not in the vocabulary: 0 … {}, or {} to ignore it",
                                        targets[token], token, vocabulary - 1, ignored_target));
  }
}

LossSum cross_entropy_forward(const float* logits, const int32_t* targets, float* log_sum_exp, int64_t tokens,
                              int64_t vocabulary) {
  check_targets(targets, tokens, vocabulary);
  return HWY_DYNAMIC_DISPATCH(cross_entropy_forward)(logits, targets, log_sum_exp, tokens, vocabulary);
}
void cross_entropy_backward_input(float* logits, const int32_t* targets, const float* log_sum_exp, int64_t tokens,
                                  int64_t vocabulary) {
  check_targets(targets, tokens, vocabulary);
  HWY_DYNAMIC_DISPATCH(cross_entropy_backward_input)(logits, targets, log_sum_exp, tokens, vocabulary);
}

}  // namespace shardpipe::kernels
#endif
