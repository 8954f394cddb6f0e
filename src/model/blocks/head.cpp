// logits = norm(input) · tableᵀ;  loss = Σ -log softmax(logits)[target]
#include <algorithm>

#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/layernorm.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/rmsnorm.h"
#include "model/blocks/kinds.h"

namespace shardpipe {
namespace {

template <typename Float>
struct HeadParameters {
  Float *gain, *bias;  // [C]; bias is null: Llama
  Float* table;        // [V, C]: the tied group, or lm_head
};

template <typename Float>
HeadParameters<Float> parameters_in(const Model& model, const Block& block, std::array<Float*, 2> groups) {
  const auto& tensors = model.groups[block.groups[0]].tensors;
  return {.gain = groups[0],
          .bias = model.config.family == Family::Gpt2 ? groups[0] + tensors[1].offset : nullptr,
          .table = model.config.tied_embeddings ? groups[1] : groups[0] + tensors.back().offset};
}

template <Element T>
void normalise(const Model& model, const BlockViews& views, const T* gain, const T* bias, T* normalised, float* mean,
               float* rstd) {
  const int64_t tokens = views.shape.tokens(), hidden = model.config.hidden;
  const auto epsilon = static_cast<float>(model.config.norm_epsilon);
  const auto* const input = static_cast<const T*>(views.input);
  if (model.config.family == Family::Gpt2) {
    kernels::layernorm_forward(input, gain, bias, normalised, mean, rstd, tokens, hidden, epsilon);
  } else {
    kernels::rmsnorm_forward(input, gain, normalised, rstd, tokens, hidden, epsilon);
  }
}

// input -> logits, log_sum_exp, the norm's statistics; returns the loss
template <Element T>
kernels::LossSum fill_saved(const Model& model, const Block& block, const BlockViews& views) {
  const TypedViews<T> typed(views);
  const int64_t tokens = views.shape.tokens(), hidden = model.config.hidden, vocabulary = model.config.vocab_size;
  const auto weight = parameters_in(model, block, typed.parameters);
  const HeadSaved<T> saved = carve_saved(head_saved<T>, model, views);
  const HeadWork<T> work = carve(head_work<T>, views.workspace, model, views);

  normalise(model, views, weight.gain, weight.bias, work.normalised, saved.mean, saved.rstd);
  kernels::linear_forward(work.normalised, weight.table, nullptr, nullptr, saved.logits, tokens, hidden, vocabulary);
  return kernels::cross_entropy_forward(saved.logits, views.targets, saved.log_sum_exp, tokens, vocabulary);
}

}  // namespace

template <Element T>
void HeadArithmetic<T>::forward(const Model& model, const Block& block, const BlockViews& views) {
  const kernels::LossSum sum = fill_saved<T>(model, block, views);
  *views.loss = {.loss = sum.loss, .tokens = static_cast<double>(sum.tokens)};
}

template <Element T>
void HeadArithmetic<T>::recompute(const Model& model, const Block& block, const BlockViews& views) {
  fill_saved<T>(model, block, views);
}

template <Element T>
void HeadArithmetic<T>::backward_input(const Model& model, const Block& block, const BlockViews& views) {
  const TypedViews<T> typed(views);
  const int64_t tokens = views.shape.tokens(), hidden = model.config.hidden, vocabulary = model.config.vocab_size;
  const auto weight = parameters_in(model, block, typed.parameters);
  const HeadSaved<T> saved = carve_saved(head_saved<T>, model, views);
  const HeadBetween<T> between = carve(head_between<T>, views.between, model, views);
  T* const d_normalised = carve(head_work<T>, views.workspace, model, views).normalised;

  kernels::cross_entropy_backward_input(saved.logits, views.targets, saved.log_sum_exp, tokens, vocabulary,
                                        views.loss_scale == nullptr ? 1.0f : *views.loss_scale);
  kernels::linear_backward_input(saved.logits, weight.table, d_normalised, tokens, hidden, vocabulary, false);
  if (model.config.family == Family::Gpt2) {
    kernels::layernorm_backward_weight(d_normalised, typed.input, saved.mean, saved.rstd, between.d_gain,
                                       between.d_bias, tokens, hidden, false);
    kernels::layernorm_backward_input(d_normalised, typed.input, weight.gain, saved.mean, saved.rstd,
                                      typed.input_gradient, tokens, hidden, false);
  } else {
    kernels::rmsnorm_backward_weight(d_normalised, typed.input, saved.rstd, between.d_gain, tokens, hidden, false);
    kernels::rmsnorm_backward_input(d_normalised, typed.input, weight.gain, saved.rstd, typed.input_gradient, tokens,
                                    hidden, false);
  }
  std::copy_n(weight.gain, hidden, between.gain);
  if (weight.bias != nullptr) std::copy_n(weight.bias, hidden, between.bias);
}

template <Element T>
void HeadArithmetic<T>::backward_weight(const Model& model, const Block& block, const BlockViews& views) {
  const int64_t tokens = views.shape.tokens(), hidden = model.config.hidden, vocabulary = model.config.vocab_size;
  const auto gradient = parameters_in(model, block, views.gradients);
  const HeadSaved<T> saved = carve_saved(head_saved<T>, model, views);
  const HeadBetween<T> between = carve(head_between<T>, views.between, model, views);
  const HeadWork<T> work = carve(head_work<T>, views.workspace, model, views);

  normalise(model, views, between.gain, between.bias, work.normalised, work.mean, work.rstd);
  const T* const d_logits = saved.logits;
  kernels::linear_backward_weight(d_logits, work.normalised, gradient.table, nullptr, tokens, hidden, vocabulary,
                                  views.accumulate[model.config.tied_embeddings ? 1 : 0]);
  give_gradient(between.d_gain, gradient.gain, hidden, views.accumulate[0]);
  if (gradient.bias != nullptr) give_gradient(between.d_bias, gradient.bias, hidden, views.accumulate[0]);
}

template struct HeadArithmetic<float>;
template struct HeadArithmetic<BFloat16>;
template struct HeadArithmetic<Float16>;

}  // namespace shardpipe
