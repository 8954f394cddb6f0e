// Dynamic loss scaling (Micikevicius et al., arXiv:1710.03740, §3.2), for fp16: gradients that would vanish below 2^-24
// are kept by multiplying the loss, and the optimizer divides again. The scale is of the mean loss, as elsewhere. The
// head's gradients are of the loss sum, so what they are multiplied by is the scale over the tokens of the global
// batch, rounded down to a power of two so that it adds no rounding of its own.
//
// Every rank holds the state and computes the next one from the same sums, so all agree without a message.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace shardpipe {

// The defaults are DeepSpeed's fp16 configuration.
struct LossScaleSettings {
  double initial = 65536, growth = 2, backoff = 0.5, minimum = 1;
  int64_t growth_interval = 1000;  // steps in a row without an overflow, after which it grows
  int64_t hysteresis = 2;          // overflows until it backs off; refilled when it grows
  bool operator==(const LossScaleSettings&) const = default;
};

struct LossScale {
  float factor = 1;  // what the head's gradients are multiplied by
  double scale = 1;
  int64_t good_steps = 0;  // since the last overflow or growth
  int64_t hysteresis_left = 1;
  int64_t skipped = 0;
  bool operator==(const LossScale&) const = default;
};

// batch_tokens: of a global batch, before any is ignored; >= 1.
inline LossScale with_scale(LossScale state, double scale, int64_t batch_tokens) {
  const int exponent = static_cast<int>(std::bit_width(static_cast<uint64_t>(batch_tokens - 1)));
  state.scale = scale;
  state.factor = static_cast<float>(std::ldexp(scale, -exponent));
  return state;
}
// Exact sums (kernels/cpu/exact_sum.h) of gradients that carry a scale count in as much larger quanta.
inline int exact_quantum_log2(const LossScale& state) {
  return std::clamp(std::ilogb(std::max(state.factor, 0x1p-100f)) - 30, -126, 64);
}
inline LossScale initial_loss_scale(const LossScaleSettings& settings, int64_t batch_tokens) {
  LossScale state;
  state.hysteresis_left = settings.hysteresis;
  return with_scale(state, settings.initial, batch_tokens);
}

// After a step whose gradients were all finite, or were not.
inline LossScale next_loss_scale(LossScale state, const LossScaleSettings& settings, bool overflow,
                                 int64_t batch_tokens) {
  constexpr double most = 0x1p100;  // its factor is still a finite float
  if (overflow) {
    ++state.skipped;
    state.good_steps = 0;
    if (--state.hysteresis_left > 0) return state;
    state.hysteresis_left = 1;
    return with_scale(state, std::max(state.scale * settings.backoff, settings.minimum), batch_tokens);
  }
  if (++state.good_steps < settings.growth_interval) return state;
  state.good_steps = 0;
  state.hysteresis_left = settings.hysteresis;
  return with_scale(state, std::min(state.scale * settings.growth, most), batch_tokens);
}

}  // namespace shardpipe
