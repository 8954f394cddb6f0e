#include "kernels/cpu/layernorm.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layernorm.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;

template <Element T>
void layernorm_forward(const T* x, const T* gamma, const T* beta, T* y, float* mean, float* rstd, int64_t tokens,
                       int64_t width, float epsilon) {
  const Floats d;
  const V inverse_width = hn::Set(d, 1.0f / static_cast<float>(width));
  for (int64_t token = 0; token < tokens; ++token) {
    const T* row = x + token * width;
    V sum = hn::Zero(d);
    for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR { sum = hn::Add(sum, lanes.load(d, row + i)); });
    const V average = hn::Mul(hn::SumOfLanes(d, sum), inverse_width);

    V squares = hn::Zero(d);
    for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V centred = lanes.zero_others(d, hn::Sub(lanes.load(d, row + i), average));
      squares = hn::MulAdd(centred, centred, squares);
    });
    const V variance = hn::Mul(hn::SumOfLanes(d, squares), inverse_width);
    mean[token] = hn::GetLane(average);
    rstd[token] = 1.0f / std::sqrt(hn::GetLane(variance) + epsilon);

    const V scale = hn::Set(d, rstd[token]);
    T* out = y + token * width;
    for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V normal = hn::Mul(hn::Sub(lanes.load(d, row + i), average), scale);
      lanes.store(hn::MulAdd(normal, lanes.load(d, gamma + i), lanes.load(d, beta + i)), d, out + i);
    });
  }
}

template <Element T>
void layernorm_backward_input(const T* dy, const T* x, const T* gamma, const float* mean, const float* rstd, T* dx,
                              int64_t tokens, int64_t width, bool accumulate) {
  const Floats d;
  const V inverse_width = hn::Set(d, 1.0f / static_cast<float>(width));
  for (int64_t token = 0; token < tokens; ++token) {
    const T* x_row = x + token * width;
    const T* dy_row = dy + token * width;
    T* dx_row = dx + token * width;
    const V average = hn::Set(d, mean[token]);
    const V scale = hn::Set(d, rstd[token]);

    // with n = (x - mean)·rstd and g = dy·gamma: dx = rstd·(g - mean(g) - n·mean(g·n))
    V sum_g = hn::Zero(d);
    V sum_gn = hn::Zero(d);
    for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V g = hn::Mul(lanes.load(d, dy_row + i), lanes.load(d, gamma + i));
      const V n = hn::Mul(hn::Sub(lanes.load(d, x_row + i), average), scale);
      sum_g = hn::Add(sum_g, g);
      sum_gn = hn::MulAdd(g, n, sum_gn);
    });
    const V mean_g = hn::Mul(hn::SumOfLanes(d, sum_g), inverse_width);
    const V mean_gn = hn::Mul(hn::SumOfLanes(d, sum_gn), inverse_width);

    for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V g = hn::Mul(lanes.load(d, dy_row + i), lanes.load(d, gamma + i));
      const V n = hn::Mul(hn::Sub(lanes.load(d, x_row + i), average), scale);
      V gradient = hn::Mul(scale, hn::NegMulAdd(n, mean_gn, hn::Sub(g, mean_g)));
      if (accumulate) gradient = hn::Add(lanes.load(d, dx_row + i), gradient);
      lanes.store(gradient, d, dx_row + i);
    });
  }
}

template <Element T>
void layernorm_backward_weight(const T* dy, const T* x, const float* mean, const float* rstd, float* dgamma,
                               float* dbeta, int64_t tokens, int64_t width, bool accumulate) {
  const Floats d;
  for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
    V sum_gamma = hn::Zero(d);
    V sum_beta = hn::Zero(d);
    for (int64_t token = 0; token < tokens; ++token) {
      const V gradient = lanes.load(d, dy + token * width + i);
      const V centred = hn::Sub(lanes.load(d, x + token * width + i), hn::Set(d, mean[token]));
      sum_gamma = hn::MulAdd(gradient, hn::Mul(centred, hn::Set(d, rstd[token])), sum_gamma);
      sum_beta = hn::Add(sum_beta, gradient);
    }
    if (accumulate) {
      sum_gamma = hn::Add(lanes.load(d, dgamma + i), sum_gamma);
      sum_beta = hn::Add(lanes.load(d, dbeta + i), sum_beta);
    }
    lanes.store(sum_gamma, d, dgamma + i);
    lanes.store(sum_beta, d, dbeta + i);
  });
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

SHARDPIPE_EXPORT(layernorm_forward);
SHARDPIPE_EXPORT(layernorm_backward_input);
SHARDPIPE_EXPORT(layernorm_backward_weight);

template <Element T>
void layernorm_forward(const T* x, const T* gamma, const T* beta, T* y, float* mean, float* rstd, int64_t tokens,
                       int64_t width, float epsilon) {
  SHARDPIPE_DISPATCH(layernorm_forward, T)(x, gamma, beta, y, mean, rstd, tokens, width, epsilon);
}
template <Element T>
void layernorm_backward_input(const T* dy, const T* x, const T* gamma, const float* mean, const float* rstd, T* dx,
                              int64_t tokens, int64_t width, bool accumulate) {
  SHARDPIPE_DISPATCH(layernorm_backward_input, T)(dy, x, gamma, mean, rstd, dx, tokens, width, accumulate);
}
template <Element T>
void layernorm_backward_weight(const T* dy, const T* x, const float* mean, const float* rstd, float* dgamma,
                               float* dbeta, int64_t tokens, int64_t width, bool accumulate) {
  SHARDPIPE_DISPATCH(layernorm_backward_weight, T)(dy, x, mean, rstd, dgamma, dbeta, tokens, width, accumulate);
}

#define SHARDPIPE_INSTANCES(T)                                                                                     \
  template void layernorm_forward(const T*, const T*, const T*, T*, float*, float*, int64_t, int64_t, float);      \
  template void layernorm_backward_input(const T*, const T*, const T*, const float*, const float*, T*, int64_t,    \
                                         int64_t, bool);                                                           \
  template void layernorm_backward_weight(const T*, const T*, const float*, const float*, float*, float*, int64_t, \
                                          int64_t, bool)
SHARDPIPE_FOR_EACH_ELEMENT(SHARDPIPE_INSTANCES);

}  // namespace shardpipe::kernels
#endif
