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

template <Element T>
LossSum cross_entropy_forward(const T* logits, const int32_t* targets, float* log_sum_exp, int64_t tokens,
                              int64_t vocabulary) {
  const Floats d;
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  LossSum sum;
  for (int64_t token = 0; token < tokens; ++token) {
    const T* row = logits + token * vocabulary;
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
    sum.loss += log_sum - (double{to_float(row[targets[token]])} - row_maximum);
    sum.tokens += 1;
  }
  return sum;
}

template <Element T>
void cross_entropy_backward_input(T* logits, const int32_t* targets, const float* log_sum_exp, int64_t tokens,
                                  int64_t vocabulary, float scale) {
  const Floats d;
  const V vector_scale = hn::Set(d, scale);
  for (int64_t token = 0; token < tokens; ++token) {
    T* row = logits + token * vocabulary;
    if (targets[token] == ignored_target) {
      for_each_vector(d, vocabulary, [&](int64_t i, auto lanes) HWY_ATTR { lanes.store(hn::Zero(d), d, row + i); });
      continue;
    }
    const V log_sum = hn::Set(d, log_sum_exp[token]);
    const auto probability = [&](V logit) HWY_ATTR { return exponential(d, hn::Sub(logit, log_sum)); };
    const float of_target = hn::GetLane(probability(hn::Set(d, to_float(row[targets[token]]))));
    for_each_vector(d, vocabulary, [&](int64_t i, auto lanes) HWY_ATTR {
      lanes.store(hn::Mul(probability(lanes.load(d, row + i)), vector_scale), d, row + i);
    });
    row[targets[token]] = from_float<T>((of_target - 1.0f) * scale);
  }
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

SHARDPIPE_EXPORT(cross_entropy_forward);
SHARDPIPE_EXPORT(cross_entropy_backward_input);

static void check_targets(const int32_t* targets, int64_t tokens, int64_t vocabulary) {
  for (int64_t token = 0; token < tokens; ++token) {
    if (targets[token] == ignored_target || (targets[token] >= 0 && targets[token] < vocabulary)) continue;
    throw std::out_of_range(fmt::format("target {} at place {} is not in the vocabulary: 0 … {}, or {} to ignore it",
                                        targets[token], token, vocabulary - 1, ignored_target));
  }
}

template <Element T>
LossSum cross_entropy_forward(const T* logits, const int32_t* targets, float* log_sum_exp, int64_t tokens,
                              int64_t vocabulary) {
  check_targets(targets, tokens, vocabulary);
  return SHARDPIPE_DISPATCH(cross_entropy_forward, T)(logits, targets, log_sum_exp, tokens, vocabulary);
}
template <Element T>
void cross_entropy_backward_input(T* logits, const int32_t* targets, const float* log_sum_exp, int64_t tokens,
                                  int64_t vocabulary, float scale) {
  check_targets(targets, tokens, vocabulary);
  SHARDPIPE_DISPATCH(cross_entropy_backward_input, T)(logits, targets, log_sum_exp, tokens, vocabulary, scale);
}

#define SHARDPIPE_INSTANCES(T)                                                                \
  template LossSum cross_entropy_forward(const T*, const int32_t*, float*, int64_t, int64_t); \
  template void cross_entropy_backward_input(T*, const int32_t*, const float*, int64_t, int64_t, float)
SHARDPIPE_FOR_EACH_ELEMENT(SHARDPIPE_INSTANCES);

}  // namespace shardpipe::kernels
#endif
