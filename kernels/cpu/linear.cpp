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
  for_each_vector(d, out, [&](int64_t i, auto lanes) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (int64_t token = 0; token < tokens; ++token) sum = hn::Add(sum, lanes.load(d, dy + token * out + i));
    if (accumulate) sum = hn::Add(lanes.load(d, dbias + i), sum);
    lanes.store(sum, d, dbias + i);
  });
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
