#include "data/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <vector>

#include "base/error.h"

namespace shardpipe {
namespace {

// A mixer of 64 bits (the finaliser of SplitMix64, Steele et al., OOPSLA 2014).
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// A permutation of 0 … 4^half_bits - 1. Four Feistel rounds suffice for halves of many bits; with halves of one or two,
// which a short text has, they leave a window up to 32 % off its share of a place in the epoch. Twelve leave no more
// than chance does.
uint64_t feistel(uint64_t value, int half_bits, uint64_t key) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits, right = value & mask;
  for (uint64_t round = 0; round < 12; ++round) {
    const uint64_t next = left ^ (mix(key ^ mix(right + (round << 60))) & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

Splits split(int64_t tokens, int64_t sequence, double held_out_fraction) {
  // Whole windows, and one token more for the last target.
  const auto windows =
      static_cast<int64_t>(std::floor(static_cast<double>(tokens) * held_out_fraction / static_cast<double>(sequence)));
  const int64_t held_out = windows == 0 ? 0 : windows * sequence + 1;
  const int64_t border = std::max<int64_t>(0, tokens - held_out);
  return {.train = {0, border, sequence}, .held_out = {border, tokens, sequence}};
}

int64_t window_of_sample(uint64_t seed, int64_t count, int64_t sample) {
  check_invariant(count >= 1 && sample >= 0, "sample {} of {} windows", sample, count);
  const auto windows = static_cast<uint64_t>(count);
  const uint64_t epoch = static_cast<uint64_t>(sample) / windows;
  const uint64_t key = mix(seed ^ mix(epoch));
  const int half_bits = std::max(1, (static_cast<int>(std::bit_width(windows - 1)) + 1) / 2);
  // Cycle walking: the permutation of the larger power of four, followed until it is in range, permutes the range.
  uint64_t window = static_cast<uint64_t>(sample) % windows;
  do window = feistel(window, half_bits, key);
  while (window >= windows);
  return static_cast<int64_t>(window);
}

void read_window(const TokenStream& stream, const Windows& windows, int64_t window, std::span<int32_t> inputs,
                 std::span<int32_t> targets) {
  check_invariant(window >= 0 && window < windows.count(), "window {} of {}", window, windows.count());
  const int64_t first = windows.first_token + window * windows.sequence;
  stream.read(first, inputs);
  stream.read(first + 1, targets);
}

double unigram_entropy(const TokenStream& stream, int64_t first_token, int64_t end_token) {
  std::map<int32_t, int64_t> rare;
  std::vector<int64_t> counts(65536, 0);
  std::vector<int32_t> tokens(65536);
  for (int64_t at = first_token; at < end_token; at += static_cast<int64_t>(tokens.size())) {
    const std::span part(tokens.data(),
                         static_cast<size_t>(std::min<int64_t>(end_token - at, static_cast<int64_t>(tokens.size()))));
    stream.read(at, part);
    for (const int32_t token : part) token < 65536 ? ++counts[static_cast<size_t>(token)] : ++rare[token];
  }
  const auto total = static_cast<double>(end_token - first_token);
  double entropy = 0;
  const auto add = [&](int64_t count) {
    if (count > 0) entropy -= static_cast<double>(count) / total * std::log(static_cast<double>(count) / total);
  };
  for (const int64_t count : counts) add(count);
  for (const auto& [token, count] : rare) add(count);
  return entropy;
}

}  // namespace shardpipe
