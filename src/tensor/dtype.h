// What an element of a tensor is: fp32, or one of two types of 16 bits, which are for storing only. Arithmetic is fp32.
//
//   type      sign exponent fraction  largest   epsilon
//   Float32      1        8       23  3.4e38    2^-23
//   BFloat16     1        8        7  3.4e38    2^-7    the upper half of a float: its range, an eighth of Float16's
//   precision Float16      1        5       10  65504     2^-10   IEEE 754 binary16: small gradients vanish below
//   2^-24, hence loss scaling
#pragma once
#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string_view>

namespace shardpipe {

enum class DType : uint8_t { Float32, BFloat16, Float16 };

struct BFloat16 {
  uint16_t bits;
  bool operator==(const BFloat16&) const = default;  // of bits, as of all below
};
struct Float16 {
  uint16_t bits;
  bool operator==(const Float16&) const = default;
};

template <typename T>
concept HalfElement = std::same_as<T, BFloat16> || std::same_as<T, Float16>;
template <typename T>
concept Element = std::same_as<T, float> || HalfElement<T>;

template <Element T>
inline constexpr DType dtype_of = std::same_as<T, float>      ? DType::Float32
                                  : std::same_as<T, BFloat16> ? DType::BFloat16
                                                              : DType::Float16;

// The distance from 1 to the next number.
template <Element T>
inline constexpr float epsilon_of = std::same_as<T, float>      ? 0x1p-23f
                                    : std::same_as<T, BFloat16> ? 0x1p-7f
                                                                : 0x1p-10f;

constexpr uint64_t bytes_of(DType type) { return type == DType::Float32 ? 4 : 2; }
constexpr std::string_view to_string(DType type) {  // as --precision names it
  return type == DType::Float32 ? "fp32" : type == DType::BFloat16 ? "bf16" : "fp16";
}

// function.operator()<T>() for the T that `type` names.
template <typename Function>
constexpr decltype(auto) with_element(DType type, Function&& function) {
  switch (type) {
    case DType::Float32:
      return function.template operator()<float>();
    case DType::BFloat16:
      return function.template operator()<BFloat16>();
    case DType::Float16:
      return function.template operator()<Float16>();
  }
  throw std::logic_error("a DType that has no name");
}

// Exact. A signalling NaN may become a quiet one.
constexpr float to_float(float value) { return value; }
constexpr float to_float(BFloat16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }
constexpr float to_float(Float16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16, exponent = value.bits >> 10 & 0x1Fu,
                 fraction = value.bits & 0x3FFu;
  if (exponent == 0) {  // zero, or a multiple of 2^-24 that floats hold as a normal number
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f));
  }
  if (exponent == 31)
    return std::bit_cast<float>(sign | 0x7F800000u | (fraction == 0 ? 0 : 0x400000u | fraction << 13));
  return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | fraction << 13);
}

namespace dtype_detail {

// bits / 2^shift, to the nearest, to the even one of two that are equally near; 1 <= shift <= 31
constexpr uint32_t shift_to_nearest_even(uint32_t bits, uint32_t shift) {
  return (bits + ((1u << (shift - 1)) - 1) + (bits >> shift & 1u)) >> shift;
}
constexpr uint32_t infinity_bits = 0x7F800000, smallest_normal_half_bits = 0x38800000;  // 2^-14

constexpr uint16_t bfloat16_bits(uint32_t sign, uint32_t magnitude) {
  if (magnitude > infinity_bits) return static_cast<uint16_t>((sign | magnitude) >> 16 | 0x40u);
  return static_cast<uint16_t>(sign >> 16 | shift_to_nearest_even(magnitude, 16));
}
constexpr uint16_t float16_bits(uint32_t sign, uint32_t magnitude) {
  const uint32_t sign16 = sign >> 16;
  if (magnitude > infinity_bits) return static_cast<uint16_t>(sign16 | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign16 | 0x7C00u);  // 65520, half way to 2^16
  if (magnitude >= smallest_normal_half_bits) {
    return static_cast<uint16_t>(sign16 | shift_to_nearest_even(magnitude - ((127 - 15) << 23), 13));
  }
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 127 - 25) return static_cast<uint16_t>(sign16);  // less than half of the smallest
  // significand · 2^(exponent - 150) in units of 2^-24
  return static_cast<uint16_t>(sign16 | shift_to_nearest_even((magnitude & 0x7FFFFFu) | 0x800000u, 126 - exponent));
}

}  // namespace dtype_detail

// The nearest, the even one of two that are equally near; beyond the largest, infinity. NaN stays NaN: quiet, with its
// sign and the upper bits of its payload, as processors do it.
template <Element T>
constexpr T from_float(float value) {
  if constexpr (std::same_as<T, float>) {
    return value;
  } else {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = bits & 0x80000000u, magnitude = bits & 0x7FFFFFFFu;
    return std::same_as<T, BFloat16> ? T{dtype_detail::bfloat16_bits(sign, magnitude)}
                                     : T{dtype_detail::float16_bits(sign, magnitude)};
  }
}

}  // namespace shardpipe
