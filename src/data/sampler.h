// Which window of the text is sample number k: a stateless function of (seed, k), so resuming is O(1), every epoch
// reads every window once, and no rank needs to know what another has read.
#pragma once
#include <cstdint>
#include <span>

#include "data/tokens.h"

namespace shardpipe {

// The windows of `sequence` inputs and their targets (the same tokens, one later) that lie in [first_token, end_token).
// Consecutive windows share one token: the last target of one is the first input of the next.
struct Windows {
  int64_t first_token, end_token, sequence;
  int64_t count() const { return end_token - first_token <= sequence ? 0 : (end_token - first_token - 1) / sequence; }
};

struct Splits {
  Windows train, held_out;
};
// The last `held_out_fraction` of the tokens is held out (rounded down to whole windows; none when that is no window).
Splits split(int64_t tokens, int64_t sequence, double held_out_fraction);

// The window of sample number k >= 0. In epoch k / count the windows come in an order of their own: a permutation of 0
// … count-1 made by a small Feistel network with cycle walking, keyed by (seed, epoch). Requires count >= 1.
int64_t window_of_sample(uint64_t seed, int64_t count, int64_t sample);

// inputs, targets [sequence]
void read_window(const TokenStream&, const Windows&, int64_t window, std::span<int32_t> inputs,
                 std::span<int32_t> targets);

// Entropy in nats a token of the distribution of single tokens in a range: what a model that knows no context would
// reach.
double unigram_entropy(const TokenStream&, int64_t first_token, int64_t end_token);

}  // namespace shardpipe
