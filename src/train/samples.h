// Where sequences come from: windows of a text, or tokens made from a seed where none is given.
#pragma once
#include "data/sampler.h"
#include "data/tokens.h"
#include "train/trainer.h"

namespace shardpipe {

TokenWidth token_width(TokenFormat);

// Sample k of a stream of windows in the order of (seed, k), without end. The stream outlives the source.
SampleSource shuffled_windows(const TokenStream& stream, Windows windows, uint64_t seed);
// Window k of the stream, in the order of the text.
SampleSource windows_in_order(const TokenStream& stream, Windows windows);
// Uniform tokens that depend on (seed, sample, position) alone: what `verify` and the benchmarks train on when they are
// given no text.
SampleSource random_samples(uint64_t seed, int64_t vocabulary);

}  // namespace shardpipe
