// Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3): ten rounds of two 32
// × 32 -> 64 bit products that turn a counter and a key into 128 random bits. No state: any number can be drawn without
// those before it, by whoever needs it.
#pragma once
#include <array>
#include <cstdint>

namespace shardpipe::kernels {

inline constexpr int philox_rounds = 10;
inline constexpr std::array<uint32_t, 2> philox_multipliers = {0xD2511F53, 0xCD9E8D57};
inline constexpr std::array<uint32_t, 2> philox_key_steps = {0x9E3779B9, 0xBB67AE85};  // added to the key each round

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < philox_rounds; ++round) {
    const uint64_t product_0 = uint64_t{philox_multipliers[0]} * counter[0];
    const uint64_t product_1 = uint64_t{philox_multipliers[1]} * counter[2];
    counter = {static_cast<uint32_t>(product_1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product_1),
               static_cast<uint32_t>(product_0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product_0)};
    key[0] += philox_key_steps[0];
    key[1] += philox_key_steps[1];
  }
  return counter;
}

}  // namespace shardpipe::kernels
