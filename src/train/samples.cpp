#include "train/samples.h"

#include <xxhash.h>

namespace shardpipe {

TokenWidth token_width(TokenFormat format) {
  switch (format) {
    case TokenFormat::Text:
      return TokenWidth::Byte;
    case TokenFormat::Uint16:
      return TokenWidth::Uint16;
    case TokenFormat::Uint32:
      return TokenWidth::Uint32;
  }
  return TokenWidth::Byte;
}

SampleSource shuffled_windows(const TokenStream& stream, Windows windows, uint64_t seed) {
  return [&stream, windows, seed, count = windows.count()](int64_t sample, std::span<int32_t> inputs,
                                                           std::span<int32_t> targets) {
    read_window(stream, windows, window_of_sample(seed, count, sample), inputs, targets);
  };
}

SampleSource windows_in_order(const TokenStream& stream, Windows windows) {
  return [&stream, windows](int64_t sample, std::span<int32_t> inputs, std::span<int32_t> targets) {
    read_window(stream, windows, sample, inputs, targets);
  };
}

SampleSource random_samples(uint64_t seed, int64_t vocabulary) {
  return [seed, vocabulary](int64_t sample, std::span<int32_t> inputs, std::span<int32_t> targets) {
    const auto token = [&](size_t position) {
      const uint64_t key[2] = {static_cast<uint64_t>(sample), position};
      return static_cast<int32_t>(XXH3_64bits_withSeed(key, sizeof key, seed) % static_cast<uint64_t>(vocabulary));
    };
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = token(i);
    for (size_t i = 0; i < targets.size(); ++i) targets[i] = token(i + 1);
  };
}

}  // namespace shardpipe
