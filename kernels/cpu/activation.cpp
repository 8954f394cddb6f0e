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

void gelu_forward(const float* x, float* y, int64_t count) {
  const Floats d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    const V vx = lanes.load(d, x + i);
    lanes.store(hn::Mul(vx, sigmoid(d, gelu_z(d, vx))), d, y + i);
  });
}

void gelu_backward_input(const float* dy, const float* x, float* dx, float* y, int64_t count) {
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

void swiglu_forward(const float* gate, const float* up, float* y, int64_t count) {
  const Floats d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    const V g = lanes.load(d, gate + i);
    lanes.store(hn::Mul(hn::Mul(g, sigmoid(d, g)), lanes.load(d, up + i)), d, y + i);
  });
}

void swiglu_backward_input(const float* dy, const float* gate, const float* up, float* dgate, float* dup, float* y,
                           int64_t count) {
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

void add(const float* x, float* y, int64_t count) {
  const Floats d;
  for_each_vector(d, count, [&](int64_t i, auto lanes) HWY_ATTR {
    lanes.store(hn::Add(lanes.load(d, y + i), lanes.load(d, x + i)), d, y + i);
  });
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

HWY_EXPORT(gelu_forward);
HWY_EXPORT(gelu_backward_input);
HWY_EXPORT(swiglu_forward);
HWY_EXPORT(swiglu_backward_input);
HWY_EXPORT(add);

void gelu_forward(const float* x, float* y, int64_t count) { HWY_DYNAMIC_DISPATCH(gelu_forward)(x, y, count); }
void gelu_backward_input(const float* dy, const float* x, float* dx, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(gelu_backward_input)(dy, x, dx, y, count);
}
void swiglu_forward(const float* gate, const float* up, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(swiglu_forward)(gate, up, y, count);
}
void swiglu_backward_input(const float* dy, const float* gate, const float* up, float* dgate, float* dup, float* y,
                           int64_t count) {
  HWY_DYNAMIC_DISPATCH(swiglu_backward_input)(dy, gate, up, dgate, dup, y, count);
}
void add(const float* x, float* y, int64_t count) { HWY_DYNAMIC_DISPATCH(add)(x, y, count); }

}  // namespace shardpipe::kernels
#endif
