#include "kernels/cpu/optimizer.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;

void adamw_step(const AdamW& adam, float* parameter, const float* gradient, float* m, float* v, int64_t count) {
  const Floats d;
  // Each constant is rounded once: 1 - beta2 taken in float would be off by 1e-5 of itself.
  const V scale = hn::Set(d, adam.gradient_scale);
  const V keep = hn::Set(d, static_cast<float>(1.0 - double{adam.learning_rate} * adam.weight_decay));
  const V beta1 = hn::Set(d, static_cast<float>(adam.beta1));
  const V beta2 = hn::Set(d, static_cast<float>(adam.beta2));
  const V one_minus_beta1 = hn::Set(d, static_cast<float>(1.0 - adam.beta1));
  const V one_minus_beta2 = hn::Set(d, static_cast<float>(1.0 - adam.beta2));
  const V step = hn::Set(d, static_cast<float>(double{adam.learning_rate} / adam.bias_correction1));
  const V inverse_root = hn::Set(d, static_cast<float>(1.0 / std::sqrt(double{adam.bias_correction2})));
  const V epsilon = hn::Set(d, adam.epsilon);
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    const V g = hn::Mul(scale, lanes.load(d, gradient + i));
    const V new_m = hn::MulAdd(beta1, lanes.load(d, m + i), hn::Mul(one_minus_beta1, g));
    const V new_v = hn::MulAdd(beta2, lanes.load(d, v + i), hn::Mul(one_minus_beta2, hn::Mul(g, g)));
    const V denominator = hn::MulAdd(hn::Sqrt(new_v), inverse_root, epsilon);
    const V decayed = hn::Mul(keep, lanes.load(d, parameter + i));
    lanes.store(new_m, d, m + i);
    lanes.store(new_v, d, v + i);
    lanes.store(hn::Sub(decayed, hn::Div(hn::Mul(step, new_m), denominator)), d, parameter + i);
  });
}

void sgd_step(const Sgd& sgd, float* parameter, const float* gradient, int64_t count) {
  const Floats d;
  const V keep = hn::Set(d, static_cast<float>(1.0 - double{sgd.learning_rate} * sgd.weight_decay));
  const V step = hn::Set(d, static_cast<float>(double{sgd.learning_rate} * sgd.gradient_scale));
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    const V decayed = hn::Mul(keep, lanes.load(d, parameter + i));
    lanes.store(hn::NegMulAdd(step, lanes.load(d, gradient + i), decayed), d, parameter + i);
  });
}

double sum_of_squares(const float* x, int64_t count) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  // Four chains hide the latency of the additions; which element joins which chain depends on its index alone.
  hn::Vec<decltype(d)> sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    for (int64_t chain = 0; chain < 4; ++chain) {
      const auto v = hn::PromoteTo(d, hn::LoadU(half, x + i + chain * lanes));
      sums[chain] = hn::MulAdd(v, v, sums[chain]);
    }
  }
  double total = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
  for (; i < count; ++i) total += double{x[i]} * double{x[i]};
  return total;
}

// Pairs, pairs of pairs, …: `open` holds a sum for each bit of the number of inputs so far, the largest first.
template <class T, class Sum>
HWY_INLINE void sum_inputs(const T* const* in, int64_t inputs, Sum* out, int64_t count, bool accumulate) {
  const hn::ScalableTag<Sum> d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    hn::Vec<decltype(d)> open[32];
    int top = 0;
    for (int64_t input = 0; input < inputs; ++input) {
      auto pair = lanes.load(d, in[input] + i);
      for (int64_t bits = input; (bits & 1) != 0; bits >>= 1) pair = hn::Add(open[--top], pair);
      open[top++] = pair;
    }
    auto sum = top > 0 ? open[--top] : hn::Zero(d);
    while (top > 0) sum = hn::Add(open[--top], sum);
    if (accumulate) sum = hn::Add(lanes.load(d, out + i), sum);
    lanes.store(sum, d, out + i);
  });
}
void sum_doubles_in_order(const double* const* in, int64_t inputs, double* out, int64_t count, bool accumulate) {
  sum_inputs(in, inputs, out, count, accumulate);
}
template <Element T>
void sum_elements_in_order(const T* const* in, int64_t inputs, float* out, int64_t count, bool accumulate) {
  sum_inputs(in, inputs, out, count, accumulate);
}

template <Element T>
bool all_finite(const T* x, int64_t count) {
  const Floats d;
  constexpr int64_t block = 4096;  // elements between two looks at whether the answer is known
  for (int64_t first = 0; first < count; first += block) {
    // x - x is 0 where x is finite, else NaN, which no addition takes away again
    V differences = hn::Zero(d);
    const T* from = x + first;
    for_each_vector(d, count - first < block ? count - first : block, [&](int64_t i, auto lanes) HWY_ATTR {
      const V v = lanes.load(d, from + i);
      differences = hn::Add(differences, hn::Sub(v, v));
    });
    if (!hn::AllTrue(d, hn::Eq(differences, hn::Zero(d)))) return false;
  }
  return true;
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

HWY_EXPORT(adamw_step);
HWY_EXPORT(sgd_step);
HWY_EXPORT(sum_of_squares);
HWY_EXPORT(sum_doubles_in_order);
SHARDPIPE_EXPORT(sum_elements_in_order);
SHARDPIPE_EXPORT(all_finite);

void adamw_step(const AdamW& adam, float* parameter, const float* gradient, float* m, float* v, int64_t count) {
  HWY_DYNAMIC_DISPATCH(adamw_step)(adam, parameter, gradient, m, v, count);
}
void sgd_step(const Sgd& sgd, float* parameter, const float* gradient, int64_t count) {
  HWY_DYNAMIC_DISPATCH(sgd_step)(sgd, parameter, gradient, count);
}
double sum_of_squares(const float* x, int64_t count) { return HWY_DYNAMIC_DISPATCH(sum_of_squares)(x, count); }
void sum_in_order(const float* const* in, int64_t inputs, float* out, int64_t count, bool accumulate) {
  SHARDPIPE_DISPATCH(sum_elements_in_order, float)(in, inputs, out, count, accumulate);
}
void sum_in_order(const double* const* in, int64_t inputs, double* out, int64_t count, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(sum_doubles_in_order)(in, inputs, out, count, accumulate);
}
template <HalfElement T>
void sum_in_order(const T* const* in, int64_t inputs, float* out, int64_t count, bool accumulate) {
  SHARDPIPE_DISPATCH(sum_elements_in_order, T)(in, inputs, out, count, accumulate);
}
template <Element T>
bool all_finite(const T* x, int64_t count) {
  return SHARDPIPE_DISPATCH(all_finite, T)(x, count);
}
#define SHARDPIPE_INSTANCES(T) template bool all_finite(const T*, int64_t)
SHARDPIPE_FOR_EACH_ELEMENT(SHARDPIPE_INSTANCES);
template void sum_in_order(const BFloat16* const*, int64_t, float*, int64_t, bool);
template void sum_in_order(const Float16* const*, int64_t, float*, int64_t, bool);

}  // namespace shardpipe::kernels
#endif
