// A Llama layer:  residual = input + o_proj(attention(rotary(qkv(norm_1(input)))));
//                 output = residual + down_proj(silu(gate_proj(x)) · up_proj(x)), x = norm_2(residual)
#include <algorithm>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/rmsnorm.h"
#include "kernels/cpu/rotary.h"
#include "model/blocks/kinds.h"

namespace shardpipe {
namespace {

template <typename Float>
struct LlamaLayer {
  Float* norm_1_gain;  // [C]
  Float* qkv_weight;  // [W, C], W = (heads + 2·kv_heads)·head_dim: q_proj, k_proj and v_proj lie one behind the other
  Float* o_weight;    // [C, C]
  Float* norm_2_gain;              // [C]
  Float *gate_weight, *up_weight;  // [F, C]
  Float* down_weight;              // [C, F]
};

// `flat` is the layer's parameter group or its gradient; the order is that of the group's tensors.
template <typename Float>
LlamaLayer<Float> tensors_in(const Model& model, const Block& block, Float* flat) {
  const auto& tensors = model.groups[block.groups[0]].tensors;
  const auto at = [&](size_t i) { return flat + tensors[i].offset; };
  return {at(0), at(1), at(4), at(5), at(6), at(7), at(8)};
}

struct Sizes {
  int64_t tokens, hidden, ffn;
  int64_t head_dim, q_width, kv_width, qkv_width;  // elements a token
  float epsilon;
};
Sizes sizes_of(const Model& model, const BlockViews& views) {
  const ModelConfig& config = model.config;
  const int64_t head_dim = config.hidden / config.heads;
  const int64_t kv_width = config.kv_heads * head_dim;
  return {.tokens = views.shape.tokens(),
          .hidden = config.hidden,
          .ffn = config.ffn,
          .head_dim = head_dim,
          .q_width = config.hidden,
          .kv_width = kv_width,
          .qkv_width = config.hidden + 2 * kv_width,
          .epsilon = static_cast<float>(config.norm_epsilon)};
}

// saved.qkv -> saved.attention, saved.log_sum_exp
template <Element T>
void attend(const Model& model, const BlockViews& views, const LayerSaved<T>& saved, const LayerForwardWork<T>& work) {
  const Sizes size = sizes_of(model, views);
  const T* const q = saved.qkv;
  const T* const k = q + size.q_width;
  const T* const v = k + size.kv_width;
  kernels::attention_forward<T>(attention_shape(model.config, views.shape), {q, size.qkv_width}, {k, size.qkv_width},
                                {v, size.qkv_width}, {saved.attention, size.hidden}, saved.log_sum_exp, work.attention);
}

// All of the forward up to the values before SwiGLU: what the backward needs.
template <Element T>
void fill_saved(const Model& model, const Block& block, const BlockViews& views, const LayerSaved<T>& saved,
                const LayerForwardWork<T>& work) {
  const TypedViews<T> typed(views);
  const ModelConfig& config = model.config;
  const MicroBatchShape& shape = views.shape;
  const Sizes size = sizes_of(model, views);
  const auto weight = tensors_in(model, block, typed.parameters[0]);
  T* const q = saved.qkv;
  T* const k = q + size.q_width;

  kernels::rmsnorm_forward(typed.input, weight.norm_1_gain, work.normalised, saved.rstd_1, size.tokens, size.hidden,
                           size.epsilon);
  kernels::linear_forward(work.normalised, weight.qkv_weight, nullptr, nullptr, saved.qkv, size.tokens, size.hidden,
                          size.qkv_width);
  kernels::rotary_table(saved.cosines, saved.sines, shape.sequence, size.head_dim, config.rope_theta);
  kernels::rotary_forward(q, size.qkv_width, saved.cosines, saved.sines, shape.batch, shape.sequence, config.heads,
                          size.head_dim);
  kernels::rotary_forward(k, size.qkv_width, saved.cosines, saved.sines, shape.batch, shape.sequence, config.kv_heads,
                          size.head_dim);
  attend(model, views, saved, work);
  kernels::linear_forward(saved.attention, weight.o_weight, nullptr, typed.input, saved.residual, size.tokens,
                          size.hidden, size.hidden);

  kernels::rmsnorm_forward(saved.residual, weight.norm_2_gain, work.normalised, saved.rstd_2, size.tokens, size.hidden,
                           size.epsilon);
  kernels::linear_forward(work.normalised, weight.gate_weight, nullptr, nullptr, saved.gate, size.tokens, size.hidden,
                          size.ffn);
  kernels::linear_forward(work.normalised, weight.up_weight, nullptr, nullptr, saved.up, size.tokens, size.hidden,
                          size.ffn);
}

}  // namespace

template <Element T>
void LlamaLayerArithmetic<T>::forward(const Model& model, const Block& block, const BlockViews& views) {
  const TypedViews<T> typed(views);
  const Sizes size = sizes_of(model, views);
  const auto weight = tensors_in(model, block, typed.parameters[0]);
  const LayerSaved<T> saved = carve_saved(layer_saved<T>, model, views);
  const LayerForwardWork<T> work = carve(layer_forward_work<T>, views.workspace, model, views);

  fill_saved(model, block, views, saved, work);
  kernels::swiglu_forward(saved.gate, saved.up, work.activated, size.tokens * size.ffn);
  kernels::linear_forward(work.activated, weight.down_weight, nullptr, saved.residual, typed.output, size.tokens,
                          size.ffn, size.hidden);
}

template <Element T>
void LlamaLayerArithmetic<T>::recompute(const Model& model, const Block& block, const BlockViews& views) {
  const LayerSaved<T> saved = carve_saved(layer_saved<T>, model, views);
  const LayerForwardWork<T> work = carve(layer_forward_work<T>, views.workspace, model, views);
  if (views.recompute == Recompute::Full)
    fill_saved(model, block, views, saved, work);
  else
    attend(model, views, saved, work);
}

template <Element T>
void LlamaLayerArithmetic<T>::backward_input(const Model& model, const Block& block, const BlockViews& views) {
  const TypedViews<T> typed(views);
  const ModelConfig& config = model.config;
  const MicroBatchShape& shape = views.shape;
  const Sizes size = sizes_of(model, views);
  const auto weight = tensors_in(model, block, typed.parameters[0]);
  const LayerSaved<T> saved = carve_saved(layer_saved<T>, model, views);
  const LayerBetween<T> between = carve(layer_between<T>, views.between, model, views);
  const LayerBackwardInputWork<T> work = carve(layer_backward_input_work<T>, views.workspace, model, views);
  const T* const q = saved.qkv;
  const T* const k = q + size.q_width;
  const T* const v = k + size.kv_width;
  T* const dq = between.d_qkv;
  T* const dk = dq + size.q_width;
  T* const dv = dk + size.kv_width;

  kernels::linear_backward_input(typed.output_gradient, weight.down_weight, work.d_activated, size.tokens, size.ffn,
                                 size.hidden, false);
  kernels::swiglu_backward_input(work.d_activated, saved.gate, saved.up, between.d_gate, between.d_up, saved.gate,
                                 size.tokens * size.ffn);
  kernels::linear_backward_input(between.d_gate, weight.gate_weight, work.d_hidden, size.tokens, size.hidden, size.ffn,
                                 false);
  kernels::linear_backward_input(between.d_up, weight.up_weight, work.d_hidden, size.tokens, size.hidden, size.ffn,
                                 true);
  kernels::rmsnorm_backward_weight(work.d_hidden, saved.residual, saved.rstd_2, between.d_gain_2, size.tokens,
                                   size.hidden, false);
  std::copy_n(typed.output_gradient, size.tokens * size.hidden, between.d_residual);
  kernels::rmsnorm_backward_input(work.d_hidden, saved.residual, weight.norm_2_gain, saved.rstd_2, between.d_residual,
                                  size.tokens, size.hidden, true);

  kernels::linear_backward_input(between.d_residual, weight.o_weight, work.d_hidden, size.tokens, size.hidden,
                                 size.hidden, false);
  kernels::attention_backward_input<T>(attention_shape(config, shape), {work.d_hidden, size.hidden},
                                       {q, size.qkv_width}, {k, size.qkv_width}, {v, size.qkv_width},
                                       {saved.attention, size.hidden}, saved.log_sum_exp, {dq, size.qkv_width},
                                       {dk, size.qkv_width}, {dv, size.qkv_width}, work.attention);
  kernels::rotary_backward_input(dq, size.qkv_width, saved.cosines, saved.sines, shape.batch, shape.sequence,
                                 config.heads, size.head_dim);
  kernels::rotary_backward_input(dk, size.qkv_width, saved.cosines, saved.sines, shape.batch, shape.sequence,
                                 config.kv_heads, size.head_dim);
  kernels::linear_backward_input(between.d_qkv, weight.qkv_weight, work.d_hidden, size.tokens, size.hidden,
                                 size.qkv_width, false);
  kernels::rmsnorm_backward_weight(work.d_hidden, typed.input, saved.rstd_1, between.d_gain_1, size.tokens, size.hidden,
                                   false);
  std::copy_n(between.d_residual, size.tokens * size.hidden, typed.input_gradient);
  kernels::rmsnorm_backward_input(work.d_hidden, typed.input, weight.norm_1_gain, saved.rstd_1, typed.input_gradient,
                                  size.tokens, size.hidden, true);
  std::copy_n(weight.norm_1_gain, size.hidden, between.gain_1);
  std::copy_n(weight.norm_2_gain, size.hidden, between.gain_2);
}

template <Element T>
void LlamaLayerArithmetic<T>::backward_weight(const Model& model, const Block& block, const BlockViews& views) {
  const TypedViews<T> typed(views);
  const Sizes size = sizes_of(model, views);
  const bool accumulate = views.accumulate[0];
  const auto gradient = tensors_in(model, block, views.gradients[0]);
  const LayerSaved<T> saved = carve_saved(layer_saved<T>, model, views);
  const LayerBetween<T> between = carve(layer_between<T>, views.between, model, views);
  const LayerBackwardWeightWork<T> work = carve(layer_backward_weight_work<T>, views.workspace, model, views);

  kernels::rmsnorm_forward(typed.input, between.gain_1, work.normalised, work.rstd, size.tokens, size.hidden,
                           size.epsilon);
  kernels::linear_backward_weight(between.d_qkv, work.normalised, gradient.qkv_weight, nullptr, size.tokens,
                                  size.hidden, size.qkv_width, accumulate);
  kernels::linear_backward_weight(between.d_residual, saved.attention, gradient.o_weight, nullptr, size.tokens,
                                  size.hidden, size.hidden, accumulate);
  kernels::rmsnorm_forward(saved.residual, between.gain_2, work.normalised, work.rstd, size.tokens, size.hidden,
                           size.epsilon);
  kernels::linear_backward_weight(between.d_gate, work.normalised, gradient.gate_weight, nullptr, size.tokens,
                                  size.hidden, size.ffn, accumulate);
  kernels::linear_backward_weight(between.d_up, work.normalised, gradient.up_weight, nullptr, size.tokens, size.hidden,
                                  size.ffn, accumulate);
  const T* const activated = saved.gate;  // since backward_input
  kernels::linear_backward_weight(typed.output_gradient, activated, gradient.down_weight, nullptr, size.tokens,
                                  size.ffn, size.hidden, accumulate);
  give_gradient(between.d_gain_1, gradient.norm_1_gain, size.hidden, accumulate);
  give_gradient(between.d_gain_2, gradient.norm_2_gain, size.hidden, accumulate);
}

template struct LlamaLayerArithmetic<float>;
template struct LlamaLayerArithmetic<BFloat16>;
template struct LlamaLayerArithmetic<Float16>;

}  // namespace shardpipe
