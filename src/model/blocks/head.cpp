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

void normalise(const Model& model, const BlockViews& views, const float* gain, const float* bias, float* normalised,
               float* mean, float* rstd) {
  const int64_t tokens = views.shape.tokens(), hidden = model.config.hidden;
  const auto epsilon = static_cast<float>(model.config.norm_epsilon);
  if (model.config.family == Family::Gpt2) {
    kernels::layernorm_forward(views.input, gain, bias, normalised, mean, rstd, tokens, hidden, epsilon);
  } else {
    kernels::rmsnorm_forward(views.input, gain, normalised, rstd, tokens, hidden, epsilon);
  }
}

// input -> logits, log_sum_exp, the norm's statistics; returns the loss
kernels::LossSum fill_saved(const Model& model, const Block& block, const BlockViews& views) {
  const int64_t tokens = views.shape.tokens(), hidden = model.config.hidden, vocabulary = model.config.vocab_size;
  const auto weight = parameters_in(model, block, views.parameters);
  const HeadSaved saved = carve_saved(head_saved, model, views);
  const HeadWork work = carve(head_work, views.workspace, model, views);

  normalise(model, views, weight.gain, weight.bias, work.normalised, saved.mean, saved.rstd);
  kernels::linear_forward(work.normalised, weight.table, nullptr, saved.logits, tokens, hidden, vocabulary);
  return kernels::cross_entropy_forward(saved.logits, views.targets, saved.log_sum_exp, tokens, vocabulary);
}

}  // namespace

void head_forward(const Model& model, const Block& block, const BlockViews& views) {
  const kernels::LossSum sum = fill_saved(model, block, views);
  *views.loss = {.loss = sum.loss, .tokens = static_cast<double>(sum.tokens)};
}

void head_recompute(const Model& model, const Block& block, const BlockViews& views) {
  fill_saved(model, block, views);
}

void head_backward_input(const Model& model, const Block& block, const BlockViews& views) {
  const int64_t tokens = views.shape.tokens(), hidden = model.config.hidden, vocabulary = model.config.vocab_size;
  const auto weight = parameters_in(model, block, views.parameters);
  const HeadSaved saved = carve_saved(head_saved, model, views);
  const HeadBetween between = carve(head_between, views.between, model, views);
  float* const d_normalised = carve(head_work, views.workspace, model, views).normalised;

  kernels::cross_entropy_backward_input(saved.logits, views.targets, saved.log_sum_exp, tokens, vocabulary);
  kernels::linear_backward_input(saved.logits, weight.table, d_normalised, tokens, hidden, vocabulary, false);
  if (model.config.family == Family::Gpt2) {
    kernels::layernorm_backward_weight(d_normalised, views.input, saved.mean, saved.rstd, between.d_gain,
                                       between.d_bias, tokens, hidden, false);
    kernels::layernorm_backward_input(d_normalised, views.input, weight.gain, saved.mean, saved.rstd,
                                      views.input_gradient, tokens, hidden, false);
  } else {
    kernels::rmsnorm_backward_weight(d_normalised, views.input, saved.rstd, between.d_gain, tokens, hidden, false);
    kernels::rmsnorm_backward_input(d_normalised, views.input, weight.gain, saved.rstd, views.input_gradient, tokens,
                                    hidden, false);
  }
  std::copy_n(weight.gain, hidden, between.gain);
  if (weight.bias != nullptr) std::copy_n(weight.bias, hidden, between.bias);
}

void head_backward_weight(const Model& model, const Block& block, const BlockViews& views) {
  const int64_t tokens = views.shape.tokens(), hidden = model.config.hidden, vocabulary = model.config.vocab_size;
  const auto gradient = parameters_in(model, block, views.gradients);
  const HeadSaved saved = carve_saved(head_saved, model, views);
  const HeadBetween between = carve(head_between, views.between, model, views);
  const HeadWork work = carve(head_work, views.workspace, model, views);

  normalise(model, views, between.gain, between.bias, work.normalised, work.mean, work.rstd);
  const float* const d_logits = saved.logits;
  kernels::linear_backward_weight(d_logits, work.normalised, gradient.table, nullptr, tokens, hidden, vocabulary,
                                  views.accumulate[model.config.tied_embeddings ? 1 : 0]);
  give_gradient(between.d_gain, gradient.gain, hidden, views.accumulate[0]);
  if (gradient.bias != nullptr) give_gradient(between.d_bias, gradient.bias, hidden, views.accumulate[0]);
}

}  // namespace shardpipe
