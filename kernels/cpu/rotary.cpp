#include "kernels/cpu/rotary.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rotary.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

// Multiplies each pair (low, high) by the rotation of its position, or by its transpose (`sign` -1).
template <Element T>
void rotate(T* x, int64_t stride, const float* cosines, const float* sines, float sign, int64_t batch, int64_t sequence,
            int64_t heads, int64_t head_dim) {
  const hn::ScalableTag<float> d;
  const int64_t half = head_dim / 2;
  const auto direction = hn::Set(d, sign);
  for (int64_t token = 0; token < batch * sequence; ++token) {
    const int64_t position = token % sequence;
    for (int64_t head = 0; head < heads; ++head) {
      T* low = x + token * stride + head * head_dim;
      T* high = low + half;
      for_each_vector(d, half, [&](int64_t i, auto lanes) HWY_ATTR {
        const auto cosine = lanes.load(d, cosines + position * half + i);
        const auto sine = hn::Mul(direction, lanes.load(d, sines + position * half + i));
        const auto a = lanes.load(d, low + i);
        const auto b = lanes.load(d, high + i);
        lanes.store(hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), d, low + i);
        lanes.store(hn::MulAdd(a, sine, hn::Mul(b, cosine)), d, high + i);
      });
    }
  }
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

SHARDPIPE_EXPORT(rotate);

void rotary_table(float* cosines, float* sines, int64_t sequence, int64_t head_dim, double theta) {
  const int64_t half = head_dim / 2;
  for (int64_t position = 0; position < sequence; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
      const double angle = static_cast<double>(position) * std::pow(theta, exponent);
      cosines[position * half + i] = static_cast<float>(std::cos(angle));
      sines[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}
template <Element T>
void rotary_forward(T* x, int64_t stride, const float* cosines, const float* sines, int64_t batch, int64_t sequence,
                    int64_t heads, int64_t head_dim) {
  SHARDPIPE_DISPATCH(rotate, T)(x, stride, cosines, sines, 1.0f, batch, sequence, heads, head_dim);
}
template <Element T>
void rotary_backward_input(T* dx, int64_t stride, const float* cosines, const float* sines, int64_t batch,
                           int64_t sequence, int64_t heads, int64_t head_dim) {
  SHARDPIPE_DISPATCH(rotate, T)(dx, stride, cosines, sines, -1.0f, batch, sequence, heads, head_dim);
}

#define SHARDPIPE_INSTANCES(T)                                                                               \
  template void rotary_forward(T*, int64_t, const float*, const float*, int64_t, int64_t, int64_t, int64_t); \
  template void rotary_backward_input(T*, int64_t, const float*, const float*, int64_t, int64_t, int64_t, int64_t)
SHARDPIPE_FOR_EACH_ELEMENT(SHARDPIPE_INSTANCES);

}  // namespace shardpipe::kernels
#endif
