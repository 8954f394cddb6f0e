#include "kernels/cpu/linear.h"

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
void sum_tokens(const float* dy, float* dbias, int64_t tokens, int64_t out, bool accumulate) {
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
HWY_EXPORT(sum_tokens);

void linear_forward(const float* x, const float* weight, const float* bias, float* y, int64_t tokens, int64_t in,
                    int64_t out) {
  gemm(Transpose::No, Transpose::Yes, tokens, out, in, x, in, weight, in, y, out, false);
  if (bias) HWY_DYNAMIC_DISPATCH(add_bias)(bias, y, tokens, out);
}
void linear_backward_input(const float* dy, const float* weight, float* dx, int64_t tokens, int64_t in, int64_t out,
                           bool accumulate) {
  gemm(Transpose::No, Transpose::No, tokens, in, out, dy, out, weight, in, dx, in, accumulate);
}
void linear_backward_weight(const float* dy, const float* x, float* dweight, float* dbias, int64_t tokens, int64_t in,
                            int64_t out, bool accumulate) {
  gemm(Transpose::Yes, Transpose::No, out, in, tokens, dy, out, x, in, dweight, in, accumulate);
  if (dbias) HWY_DYNAMIC_DISPATCH(sum_tokens)(dy, dbias, tokens, out, accumulate);
}

}  // namespace shardpipe::kernels
#endif
