#include "kernels/cpu/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;

// (1 + tanh(u)) / 2 = sigmoid(2u), so y = x · sigmoid(z) with z = 2·√(2/π)·(x + 0.044715 x³).
constexpr float z_linear = 1.5957691216057308f;
constexpr float z_cubic = 0.044715f * z_linear;

HWY_INLINE V gelu_z(Floats d, V x) {
  const V slope = hn::MulAdd(hn::Mul(x, x), hn::Set(d, z_cubic), hn::Set(d, z_linear));
  return hn::Mul(x, slope);
}

template <Element T>
void gelu_forward(const T* x, T* y, int64_t count) {
  const Floats d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    const V vx = lanes.load(d, x + i);
    lanes.store(hn::Mul(vx, sigmoid(d, gelu_z(d, vx))), d, y + i);
  });
}

template <Element T>
void gelu_backward_input(const T* dy, const T* x, T* dx, T* y, int64_t count) {
  const Floats d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    const V vx = lanes.load(d, x + i);
    const V s = sigmoid(d, gelu_z(d, vx));
    const V dz = hn::MulAdd(hn::Mul(vx, vx), hn::Set(d, 3 * z_cubic), hn::Set(d, z_linear));
    // y' = s + x·s·(1-s)·z'
    const V slope = hn::Mul(hn::Sub(hn::Set(d, 1.0f), s), hn::Mul(vx, dz));
    const V derivative = hn::MulAdd(s, slope, s);
    lanes.store(hn::Mul(lanes.load(d, dy + i), derivative), d, dx + i);
    lanes.store(hn::Mul(vx, s), d, y + i);
  });
}

template <Element T>
void swiglu_forward(const T* gate, const T* up, T* y, int64_t count) {
  const Floats d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    const V g = lanes.load(d, gate + i);
    lanes.store(hn::Mul(hn::Mul(g, sigmoid(d, g)), lanes.load(d, up + i)), d, y + i);
  });
}

template <Element T>
void swiglu_backward_input(const T* dy, const T* gate, const T* up, T* dgate, T* dup, T* y, int64_t count) {
  const Floats d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    const V g = lanes.load(d, gate + i);
    const V u = lanes.load(d, up + i);
    const V vdy = lanes.load(d, dy + i);
    const V s = sigmoid(d, g);
    // silu' = s + g·s·(1-s)
    const V derivative = hn::MulAdd(s, hn::Mul(hn::Sub(hn::Set(d, 1.0f), s), g), s);
    lanes.store(hn::Mul(hn::Mul(vdy, u), derivative), d, dgate + i);
    const V silu = hn::Mul(g, s);
    lanes.store(hn::Mul(vdy, silu), d, dup + i);
    lanes.store(hn::Mul(silu, u), d, y + i);
  });
}

template <Element T>
void add(const T* x, T* y, int64_t count) {
  const Floats d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    lanes.store(hn::Add(lanes.load(d, y + i), lanes.load(d, x + i)), d, y + i);
  });
}

template <Element T>
void add_to_sum(const T* x, float* sum, int64_t count) {
  const Floats d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    lanes.store(hn::Add(lanes.load(d, sum + i), lanes.load(d, x + i)), d, sum + i);
  });
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

SHARDPIPE_EXPORT(gelu_forward);
SHARDPIPE_EXPORT(gelu_backward_input);
SHARDPIPE_EXPORT(swiglu_forward);
SHARDPIPE_EXPORT(swiglu_backward_input);
SHARDPIPE_EXPORT(add);
SHARDPIPE_EXPORT(add_to_sum);

template <Element T>
void gelu_forward(const T* x, T* y, int64_t count) {
  SHARDPIPE_DISPATCH(gelu_forward, T)(x, y, count);
}
template <Element T>
void gelu_backward_input(const T* dy, const T* x, T* dx, T* y, int64_t count) {
  SHARDPIPE_DISPATCH(gelu_backward_input, T)(dy, x, dx, y, count);
}
template <Element T>
void swiglu_forward(const T* gate, const T* up, T* y, int64_t count) {
  SHARDPIPE_DISPATCH(swiglu_forward, T)(gate, up, y, count);
}
template <Element T>
void swiglu_backward_input(const T* dy, const T* gate, const T* up, T* dgate, T* dup, T* y, int64_t count) {
  SHARDPIPE_DISPATCH(swiglu_backward_input, T)(dy, gate, up, dgate, dup, y, count);
}
template <Element T>
void add(const T* x, T* y, int64_t count) {
  SHARDPIPE_DISPATCH(add, T)(x, y, count);
}
template <Element T>
void add_to_sum(const T* x, float* sum, int64_t count) {
  SHARDPIPE_DISPATCH(add_to_sum, T)(x, sum, count);
}

#define SHARDPIPE_INSTANCES(T)                                                            \
  template void gelu_forward(const T*, T*, int64_t);                                      \
  template void gelu_backward_input(const T*, const T*, T*, T*, int64_t);                 \
  template void swiglu_forward(const T*, const T*, T*, int64_t);                          \
  template void swiglu_backward_input(const T*, const T*, const T*, T*, T*, T*, int64_t); \
  template void add(const T*, T*, int64_t);                                               \
  template void add_to_sum(const T*, float*, int64_t)
SHARDPIPE_FOR_EACH_ELEMENT(SHARDPIPE_INSTANCES);

}  // namespace shardpipe::kernels
#endif
