#include "kernels/cpu/rmsnorm.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rmsnorm.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;

template <Element T>
void rmsnorm_forward(const T* x, const T* gamma, T* y, float* rstd, int64_t tokens, int64_t width, float epsilon) {
  const Floats d;
  for (int64_t token = 0; token < tokens; ++token) {
    const T* row = x + token * width;
    V squares = hn::Zero(d);
    for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V v = lanes.load(d, row + i);
      squares = hn::MulAdd(v, v, squares);
    });
    const float mean_square = hn::GetLane(hn::SumOfLanes(d, squares)) / static_cast<float>(width);
    rstd[token] = 1.0f / std::sqrt(mean_square + epsilon);

    const V scale = hn::Set(d, rstd[token]);
    T* out = y + token * width;
    for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
      lanes.store(hn::Mul(hn::Mul(lanes.load(d, row + i), scale), lanes.load(d, gamma + i)), d, out + i);
    });
  }
}

template <Element T>
void rmsnorm_backward_input(const T* dy, const T* x, const T* gamma, const float* rstd, T* dx, int64_t tokens,
                            int64_t width, bool accumulate) {
  const Floats d;
  const V inverse_width = hn::Set(d, 1.0f / static_cast<float>(width));
  for (int64_t token = 0; token < tokens; ++token) {
    const T* x_row = x + token * width;
    const T* dy_row = dy + token * width;
    T* dx_row = dx + token * width;
    const V scale = hn::Set(d, rstd[token]);

    // with n = x·rstd and g = dy·gamma: dx = rstd·(g - n·mean(g·n))
    V sum_gn = hn::Zero(d);
    for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V g = hn::Mul(lanes.load(d, dy_row + i), lanes.load(d, gamma + i));
      sum_gn = hn::MulAdd(g, hn::Mul(lanes.load(d, x_row + i), scale), sum_gn);
    });
    const V mean_gn = hn::Mul(hn::SumOfLanes(d, sum_gn), inverse_width);

    for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V g = hn::Mul(lanes.load(d, dy_row + i), lanes.load(d, gamma + i));
      const V n = hn::Mul(lanes.load(d, x_row + i), scale);
      V gradient = hn::Mul(scale, hn::NegMulAdd(n, mean_gn, g));
      if (accumulate) gradient = hn::Add(lanes.load(d, dx_row + i), gradient);
      lanes.store(gradient, d, dx_row + i);
    });
  }
}

template <Element T>
void rmsnorm_backward_weight(const T* dy, const T* x, const float* rstd, float* dgamma, int64_t tokens, int64_t width,
                             bool accumulate) {
  const Floats d;
  for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
    V sum = hn::Zero(d);
    for (int64_t token = 0; token < tokens; ++token) {
      const V n = hn::Mul(lanes.load(d, x + token * width + i), hn::Set(d, rstd[token]));
      sum = hn::MulAdd(lanes.load(d, dy + token * width + i), n, sum);
    }
    if (accumulate) sum = hn::Add(lanes.load(d, dgamma + i), sum);
    lanes.store(sum, d, dgamma + i);
  });
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

SHARDPIPE_EXPORT(rmsnorm_forward);
SHARDPIPE_EXPORT(rmsnorm_backward_input);
SHARDPIPE_EXPORT(rmsnorm_backward_weight);

template <Element T>
void rmsnorm_forward(const T* x, const T* gamma, T* y, float* rstd, int64_t tokens, int64_t width, float epsilon) {
  SHARDPIPE_DISPATCH(rmsnorm_forward, T)(x, gamma, y, rstd, tokens, width, epsilon);
}
template <Element T>
void rmsnorm_backward_input(const T* dy, const T* x, const T* gamma, const float* rstd, T* dx, int64_t tokens,
                            int64_t width, bool accumulate) {
  SHARDPIPE_DISPATCH(rmsnorm_backward_input, T)(dy, x, gamma, rstd, dx, tokens, width, accumulate);
}
template <Element T>
void rmsnorm_backward_weight(const T* dy, const T* x, const float* rstd, float* dgamma, int64_t tokens, int64_t width,
                             bool accumulate) {
  SHARDPIPE_DISPATCH(rmsnorm_backward_weight, T)(dy, x, rstd, dgamma, tokens, width, accumulate);
}

#define SHARDPIPE_INSTANCES(T)                                                                                  \
  template void rmsnorm_forward(const T*, const T*, T*, float*, int64_t, int64_t, float);                       \
  template void rmsnorm_backward_input(const T*, const T*, const T*, const float*, T*, int64_t, int64_t, bool); \
  template void rmsnorm_backward_weight(const T*, const T*, const float*, float*, int64_t, int64_t, bool)
SHARDPIPE_FOR_EACH_ELEMENT(SHARDPIPE_INSTANCES);

}  // namespace shardpipe::kernels
#endif
