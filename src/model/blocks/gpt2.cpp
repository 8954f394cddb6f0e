// A GPT-2 layer:  residual = input + c_proj(attention(c_attn(ln_1(input))));  output = residual +
// c_proj(gelu(c_fc(ln_2(residual))))
#include <algorithm>
#include <optional>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/layernorm.h"
#include "kernels/cpu/linear.h"
#include "model/blocks/kinds.h"

namespace shardpipe {
namespace {

template <typename Float>
struct Gpt2Layer {
  Float *ln_1_gain, *ln_1_bias;            // [C]
  Float *c_attn_weight, *c_attn_bias;      // [3C, C], [3C]: queries, keys, values
  Float *c_proj_weight, *c_proj_bias;      // [C, C], [C]
  Float *ln_2_gain, *ln_2_bias;            // [C]
  Float *mlp_fc_weight, *mlp_fc_bias;      // [F, C], [F]
  Float *mlp_proj_weight, *mlp_proj_bias;  // [C, F], [C]
};

// `flat` is the layer's parameter group or its gradient; the order is that of the group's tensors.
template <typename Float>
Gpt2Layer<Float> tensors_in(const Model& model, const Block& block, Float* flat) {
  const auto& tensors = model.groups[block.groups[0]].tensors;
  const auto at = [&](size_t i) { return flat + tensors[i].offset; };
  return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9), at(10), at(11)};
}

struct Sizes {
  int64_t tokens, hidden, ffn;
  float epsilon;
};
Sizes sizes_of(const Model& model, const BlockViews& views) {
  return {views.shape.tokens(), model.config.hidden, model.config.ffn, static_cast<float>(model.config.norm_epsilon)};
}

// Of the probabilities; nullopt where nothing is dropped.
std::optional<kernels::AttentionDropout> attention_dropout(const Model& model, const Block& block,
                                                           const BlockViews& views) {
  if (!drops(model, views)) return std::nullopt;
  return kernels::AttentionDropout{.key = dropout_key(block, views, DropoutSite::Probabilities),
                                   .first_sample = views.dropout->first_sample + views.first_row,
                                   .probability = static_cast<float>(model.config.dropout)};
}

// y = residual + dropout(x · weightᵀ + bias); rounded twice with dropout, once without
template <Element T>
void residual_branch(const Model& model, const Block& block, const BlockViews& views, DropoutSite site, const T* x,
                     const T* weight, const T* bias, const T* residual, T* y, int64_t in) {
  const int64_t tokens = views.shape.tokens(), hidden = model.config.hidden;
  if (!drops(model, views)) {
    kernels::linear_forward(x, weight, bias, residual, y, tokens, in, hidden);
    return;
  }
  kernels::linear_forward<T>(x, weight, bias, nullptr, y, tokens, in, hidden);
  drop(model, block, views, site, y, y);
  kernels::add(residual, y, tokens * hidden);
}

// The gradient of a branch before its dropout: `gradient` itself, or its dropped copy in `dropped`.
template <Element T>
const T* branch_gradient(const Model& model, const Block& block, const BlockViews& views, DropoutSite site,
                         const T* gradient, T* dropped) {
  if (!drops(model, views)) return gradient;
  drop(model, block, views, site, gradient, dropped);
  return dropped;
}

// saved.qkv -> saved.attention, saved.log_sum_exp
template <Element T>
void attend(const Model& model, const Block& block, const BlockViews& views, const LayerSaved<T>& saved,
            const LayerForwardWork<T>& work) {
  const int64_t hidden = model.config.hidden;
  const auto dropout = attention_dropout(model, block, views);
  kernels::attention_forward<T>(attention_shape(model.config, views.shape), {saved.qkv, 3 * hidden},
                                {saved.qkv + hidden, 3 * hidden}, {saved.qkv + 2 * hidden, 3 * hidden},
                                {saved.attention, hidden}, saved.log_sum_exp, work.attention,
                                dropout ? &*dropout : nullptr);
}

// All of the forward up to the values before GELU: what the backward needs.
template <Element T>
void fill_saved(const Model& model, const Block& block, const BlockViews& views, const LayerSaved<T>& saved,
                const LayerForwardWork<T>& work) {
  const TypedViews<T> typed(views);
  const auto [tokens, hidden, ffn, epsilon] = sizes_of(model, views);
  const auto weight = tensors_in(model, block, typed.parameters[0]);
  kernels::layernorm_forward(typed.input, weight.ln_1_gain, weight.ln_1_bias, work.normalised, saved.mean_1,
                             saved.rstd_1, tokens, hidden, epsilon);
  kernels::linear_forward(work.normalised, weight.c_attn_weight, weight.c_attn_bias, nullptr, saved.qkv, tokens, hidden,
                          3 * hidden);
  attend(model, block, views, saved, work);
  residual_branch(model, block, views, DropoutSite::AttentionBranch, saved.attention, weight.c_proj_weight,
                  weight.c_proj_bias, typed.input, saved.residual, hidden);

  kernels::layernorm_forward(saved.residual, weight.ln_2_gain, weight.ln_2_bias, work.normalised, saved.mean_2,
                             saved.rstd_2, tokens, hidden, epsilon);
  kernels::linear_forward(work.normalised, weight.mlp_fc_weight, weight.mlp_fc_bias, nullptr, saved.gate, tokens,
                          hidden, ffn);
}

}  // namespace

template <Element T>
void Gpt2LayerArithmetic<T>::forward(const Model& model, const Block& block, const BlockViews& views) {
  const TypedViews<T> typed(views);
  const auto [tokens, hidden, ffn, epsilon] = sizes_of(model, views);
  const auto weight = tensors_in(model, block, typed.parameters[0]);
  const LayerSaved<T> saved = carve_saved(layer_saved<T>, model, views);
  const LayerForwardWork<T> work = carve(layer_forward_work<T>, views.workspace, model, views);

  fill_saved(model, block, views, saved, work);
  kernels::gelu_forward(saved.gate, work.activated, tokens * ffn);
  residual_branch<T>(model, block, views, DropoutSite::FeedForwardBranch, work.activated, weight.mlp_proj_weight,
                     weight.mlp_proj_bias, saved.residual, typed.output, ffn);
}

template <Element T>
void Gpt2LayerArithmetic<T>::recompute(const Model& model, const Block& block, const BlockViews& views) {
  const LayerSaved<T> saved = carve_saved(layer_saved<T>, model, views);
  const LayerForwardWork<T> work = carve(layer_forward_work<T>, views.workspace, model, views);
  if (views.recompute == Recompute::Full)
    fill_saved(model, block, views, saved, work);
  else
    attend(model, block, views, saved, work);
}

template <Element T>
void Gpt2LayerArithmetic<T>::backward_input(const Model& model, const Block& block, const BlockViews& views) {
  const TypedViews<T> typed(views);
  const auto [tokens, hidden, ffn, epsilon] = sizes_of(model, views);
  const auto weight = tensors_in(model, block, typed.parameters[0]);
  const LayerSaved<T> saved = carve_saved(layer_saved<T>, model, views);
  const LayerBetween<T> between = carve(layer_between<T>, views.between, model, views);
  const LayerBackwardInputWork<T> work = carve(layer_backward_input_work<T>, views.workspace, model, views);

  const T* const d_feed_forward =
      branch_gradient(model, block, views, DropoutSite::FeedForwardBranch, typed.output_gradient, work.d_dropped);
  kernels::linear_backward_input(d_feed_forward, weight.mlp_proj_weight, between.d_gate, tokens, ffn, hidden, false);
  kernels::gelu_backward_input(between.d_gate, saved.gate, between.d_gate, saved.gate, tokens * ffn);
  kernels::linear_backward_input(between.d_gate, weight.mlp_fc_weight, work.d_hidden, tokens, hidden, ffn, false);
  kernels::layernorm_backward_weight(work.d_hidden, saved.residual, saved.mean_2, saved.rstd_2, between.d_gain_2,
                                     between.d_bias_2, tokens, hidden, false);
  std::copy_n(typed.output_gradient, tokens * hidden, between.d_residual);
  kernels::layernorm_backward_input(work.d_hidden, saved.residual, weight.ln_2_gain, saved.mean_2, saved.rstd_2,
                                    between.d_residual, tokens, hidden, true);

  const T* const d_attention =
      branch_gradient<T>(model, block, views, DropoutSite::AttentionBranch, between.d_residual, work.d_dropped);
  kernels::linear_backward_input(d_attention, weight.c_proj_weight, work.d_hidden, tokens, hidden, hidden, false);
  const auto dropout = attention_dropout(model, block, views);
  kernels::attention_backward_input<T>(
      attention_shape(model.config, views.shape), {work.d_hidden, hidden}, {saved.qkv, 3 * hidden},
      {saved.qkv + hidden, 3 * hidden}, {saved.qkv + 2 * hidden, 3 * hidden}, {saved.attention, hidden},
      saved.log_sum_exp, {between.d_qkv, 3 * hidden}, {between.d_qkv + hidden, 3 * hidden},
      {between.d_qkv + 2 * hidden, 3 * hidden}, work.attention, dropout ? &*dropout : nullptr);
  kernels::linear_backward_input(between.d_qkv, weight.c_attn_weight, work.d_hidden, tokens, hidden, 3 * hidden, false);
  kernels::layernorm_backward_weight(work.d_hidden, typed.input, saved.mean_1, saved.rstd_1, between.d_gain_1,
                                     between.d_bias_1, tokens, hidden, false);
  std::copy_n(between.d_residual, tokens * hidden, typed.input_gradient);
  kernels::layernorm_backward_input(work.d_hidden, typed.input, weight.ln_1_gain, saved.mean_1, saved.rstd_1,
                                    typed.input_gradient, tokens, hidden, true);
  std::copy_n(weight.ln_1_gain, hidden, between.gain_1);
  std::copy_n(weight.ln_1_bias, hidden, between.bias_1);
  std::copy_n(weight.ln_2_gain, hidden, between.gain_2);
  std::copy_n(weight.ln_2_bias, hidden, between.bias_2);
}

template <Element T>
void Gpt2LayerArithmetic<T>::backward_weight(const Model& model, const Block& block, const BlockViews& views) {
  const TypedViews<T> typed(views);
  const auto [tokens, hidden, ffn, epsilon] = sizes_of(model, views);
  const bool accumulate = views.accumulate[0];
  const auto gradient = tensors_in(model, block, views.gradients[0]);
  const LayerSaved<T> saved = carve_saved(layer_saved<T>, model, views);
  const LayerBetween<T> between = carve(layer_between<T>, views.between, model, views);
  const LayerBackwardWeightWork<T> work = carve(layer_backward_weight_work<T>, views.workspace, model, views);

  kernels::layernorm_forward(typed.input, between.gain_1, between.bias_1, work.normalised, work.mean, work.rstd, tokens,
                             hidden, epsilon);
  kernels::linear_backward_weight(between.d_qkv, work.normalised, gradient.c_attn_weight, gradient.c_attn_bias, tokens,
                                  hidden, 3 * hidden, accumulate);
  const T* const d_attention =
      branch_gradient<T>(model, block, views, DropoutSite::AttentionBranch, between.d_residual, work.d_dropped);
  kernels::linear_backward_weight(d_attention, saved.attention, gradient.c_proj_weight, gradient.c_proj_bias, tokens,
                                  hidden, hidden, accumulate);
  kernels::layernorm_forward(saved.residual, between.gain_2, between.bias_2, work.normalised, work.mean, work.rstd,
                             tokens, hidden, epsilon);
  kernels::linear_backward_weight(between.d_gate, work.normalised, gradient.mlp_fc_weight, gradient.mlp_fc_bias, tokens,
                                  hidden, ffn, accumulate);
  const T* const activated = saved.gate;  // since backward_input
  const T* const d_feed_forward =
      branch_gradient(model, block, views, DropoutSite::FeedForwardBranch, typed.output_gradient, work.d_dropped);
  kernels::linear_backward_weight(d_feed_forward, activated, gradient.mlp_proj_weight, gradient.mlp_proj_bias, tokens,
                                  ffn, hidden, accumulate);
  give_gradient(between.d_gain_1, gradient.ln_1_gain, hidden, accumulate);
  give_gradient(between.d_bias_1, gradient.ln_1_bias, hidden, accumulate);
  give_gradient(between.d_gain_2, gradient.ln_2_gain, hidden, accumulate);
  give_gradient(between.d_bias_2, gradient.ln_2_bias, hidden, accumulate);
}

template struct Gpt2LayerArithmetic<float>;
template struct Gpt2LayerArithmetic<BFloat16>;
template struct Gpt2LayerArithmetic<Float16>;

}  // namespace shardpipe
