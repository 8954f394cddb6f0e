#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>

#include "kernels/cpu/philox.h"
#include "model/blocks/blocks.h"

namespace shardpipe {
namespace {

// FNV-1a: which stream of numbers a tensor draws from.
uint64_t hash_of(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3;
  return hash;
}

uint32_t low(uint64_t bits) { return static_cast<uint32_t>(bits); }
uint32_t high(uint64_t bits) { return static_cast<uint32_t>(bits >> 32); }

// Elements 2·pair and 2·pair + 1 of a tensor: two independent standard normal numbers (Box & Muller 1958).
std::array<double, 2> normal_pair(uint64_t seed, uint64_t tensor_hash, uint64_t pair) {
  const auto bits =
      kernels::philox4x32({low(pair), high(pair), low(tensor_hash), high(tensor_hash)}, {low(seed), high(seed)});
  const auto uniform = [&](size_t i) {  // in (0, 1]: its logarithm is finite
    const uint64_t word = uint64_t{bits[i + 1]} << 32 | bits[i];
    return static_cast<double>((word >> 11) + 1) * 0x1p-53;
  };
  const double radius = std::sqrt(-2.0 * std::log(uniform(0)));
  const double angle = 2.0 * std::numbers::pi * uniform(2);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// Elements [first, end) of the tensor.
void fill(const Tensor& tensor, uint64_t seed, uint64_t first, uint64_t end, float* out) {
  if (tensor.initial.kind != Initial::Kind::Normal) {
    std::fill_n(out, end - first, tensor.initial.kind == Initial::Kind::Ones ? 1.0f : 0.0f);
    return;
  }
  const uint64_t hash = hash_of(tensor.name);
  for (uint64_t pair = first / 2; 2 * pair < end; ++pair) {
    const std::array<double, 2> normal = normal_pair(seed, hash, pair);
    for (const uint64_t side : {0, 1}) {
      const uint64_t element = 2 * pair + side;
      if (element >= first && element < end) {
        out[element - first] = static_cast<float>(normal[side] * static_cast<double>(tensor.initial.deviation));
      }
    }
  }
}

}  // namespace

void initialise(const ParameterGroup& group, uint64_t seed, uint64_t first, uint64_t count, float* out) {
  const uint64_t end = first + count;
  for (const Tensor& tensor : group.tensors) {
    const uint64_t from = std::max(first, tensor.offset), to = std::min(end, tensor.offset + tensor.elements);
    if (from < to) fill(tensor, seed, from - tensor.offset, to - tensor.offset, out + (from - first));
  }
  const uint64_t padding_from = std::max(first, group.elements);
  if (padding_from < end) std::fill_n(out + (padding_from - first), end - padding_from, 0.0f);
}

}  // namespace shardpipe
