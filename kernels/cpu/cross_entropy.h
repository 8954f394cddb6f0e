// Softmax and cross entropy, summed (not averaged) over the targets; no second copy of the logits is ever stored.
#pragma once
#include <cstdint>

namespace shardpipe::kernels {

inline constexpr int32_t ignored_target = -1;  // a target that gives no loss, no gradient and is not counted

struct LossSum {
  double loss = 0;     // sum over counted targets of -log p(target)
  int64_t tokens = 0;  // how many were counted
};

// logits [tokens, vocabulary], targets [tokens]; log_sum_exp [tokens] is kept for backward. Losses are summed in double
// in ascending order. Throws std::out_of_range as embedding_forward does for a target that is neither ignored nor in
// the vocabulary.
LossSum cross_entropy_forward(const float* logits, const int32_t* targets, float* log_sum_exp, int64_t tokens,
                              int64_t vocabulary);
// logits are overwritten by the gradient of the loss SUM: softmax(logits) - onehot(target), zero rows where ignored
void cross_entropy_backward_input(float* logits, const int32_t* targets, const float* log_sum_exp, int64_t tokens,
                                  int64_t vocabulary);

}  // namespace shardpipe::kernels
