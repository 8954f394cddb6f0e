#include "kernels/cpu/linear.h"

#include "kernels/cpu/activation.h"
#include "kernels/cpu/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

// y [tokens, out] += bias [out]
void add_bias(const float* bias, float* y, int64_t tokens, int64_t out) {
  const hn::ScalableTag<float> d;
  for (int64_t token = 0; token < tokens; ++token) {
    float* row = y + token * out;
    for_each_vector(d, out, [&](int64_t i, auto lanes) HWY_ATTR {
      lanes.store(hn::Add(lanes.load(d, row + i), lanes.load(d, bias + i)), d, row + i);
    });
  }
}

// dbias [out] = (accumulate ? dbias : 0) + the sum of dy [tokens, out] over tokens, in ascending order
template <Element T>
void sum_tokens(const T* dy, float* dbias, int64_t tokens, int64_t out, bool accumulate) {
  const hn::ScalableTag<float> d;
  const auto columns = [&]<int vectors>(int64_t i, auto lanes) HWY_ATTR {
    const int64_t step = static_cast<int64_t>(hn::Lanes(d));
    hn::Vec<decltype(d)> sums[vectors];
    for (int v = 0; v < vectors; ++v) sums[v] = hn::Zero(d);
    for (int64_t token = 0; token < tokens; ++token) {
      for (int v = 0; v < vectors; ++v) {
        sums[v] = hn::Add(sums[v], lanes.load(d, dy + token * out + i + v * step));
      }
    }
    for (int v = 0; v < vectors; ++v) {
      float* to = dbias + i + v * step;
      lanes.store(accumulate ? hn::Add(lanes.load(d, to), sums[v]) : sums[v], d, to);
    }
  };
  // Eight vectors side by side hide the latency of the additions, and read whole cache lines.
  constexpr int side_by_side = 8;
  const int64_t wide = side_by_side * static_cast<int64_t>(hn::Lanes(d));
  int64_t first = 0;
  for (; first + wide <= out; first += wide) columns.template operator()<side_by_side>(first, AllLanes{});
  for_each_vector(d, out - first,
                  [&](int64_t i, auto lanes) HWY_ATTR { columns.template operator()<1>(first + i, lanes); });
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

HWY_EXPORT(add_bias);
SHARDPIPE_EXPORT(sum_tokens);

template <Element T>
void linear_forward(const T* x, const T* weight, const std::type_identity_t<T>* bias,
                    const std::type_identity_t<T>* residual, T* y, int64_t tokens, int64_t in, int64_t out) {
  if constexpr (HalfElement<T>) {
    gemm(Transpose::No, Transpose::Yes, tokens, out, in, x, in, weight, in, y, out, Addends<T>{bias, residual});
  } else {
    gemm(Transpose::No, Transpose::Yes, tokens, out, in, x, in, weight, in, y, out, false);
    if (bias) HWY_DYNAMIC_DISPATCH(add_bias)(bias, y, tokens, out);
    if (residual) add(residual, y, tokens * out);
  }
}
template <Element T>
void linear_backward_input(const T* dy, const T* weight, T* dx, int64_t tokens, int64_t in, int64_t out,
                           bool accumulate) {
  if constexpr (HalfElement<T>) {
    gemm(Transpose::No, Transpose::No, tokens, in, out, dy, out, weight, in, dx, in,
         Addends<T>{.matrix = accumulate ? dx : nullptr});
  } else {
    gemm(Transpose::No, Transpose::No, tokens, in, out, dy, out, weight, in, dx, in, accumulate);
  }
}
template <Element T>
void linear_backward_weight(const T* dy, const T* x, float* dweight, float* dbias, int64_t tokens, int64_t in,
                            int64_t out, bool accumulate) {
  gemm(Transpose::Yes, Transpose::No, out, in, tokens, dy, out, x, in, dweight, in, accumulate);
  if (dbias) SHARDPIPE_DISPATCH(sum_tokens, T)(dy, dbias, tokens, out, accumulate);
}

#define SHARDPIPE_INSTANCES(T)                                                                         \
  template void linear_forward(const T*, const T*, const T*, const T*, T*, int64_t, int64_t, int64_t); \
  template void linear_backward_input(const T*, const T*, T*, int64_t, int64_t, int64_t, bool);        \
  template void linear_backward_weight(const T*, const T*, float*, float*, int64_t, int64_t, int64_t, bool)
SHARDPIPE_FOR_EACH_ELEMENT(SHARDPIPE_INSTANCES);

}  // namespace shardpipe::kernels
#endif
