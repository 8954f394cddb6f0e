// Softmax and cross entropy, summed (not averaged) over the targets; no second copy of the logits is ever stored.
// Computed in fp32 (sums over the vocabulary) and double (over tokens) from logits that are stored as T
// (tensor/dtype.h).
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace shardpipe::kernels {

inline constexpr int32_t ignored_target = -1;  // a target that gives no loss, no gradient and is not counted

struct LossSum {
  double loss = 0;     // sum over counted targets of -log p(target)
  int64_t tokens = 0;  // how many were counted
};

// logits [tokens, vocabulary], targets [tokens]; log_sum_exp [tokens] is kept for backward. Losses are summed in double
// in ascending order. Throws std::out_of_range as embedding_forward does for a target that is neither ignored nor in
// the vocabulary.
template <Element T>
LossSum cross_entropy_forward(const T* logits, const int32_t* targets, float* log_sum_exp, int64_t tokens,
                              int64_t vocabulary);
// logits are overwritten by scale times the gradient of the loss SUM: softmax(logits) - onehot(target), zero rows where
// ignored. It is rounded to T once, after it is scaled: what keeps small gradients from vanishing in fp16.
template <Element T>
void cross_entropy_backward_input(T* logits, const int32_t* targets, const float* log_sum_exp, int64_t tokens,
                                  int64_t vocabulary, float scale);

}  // namespace shardpipe::kernels
