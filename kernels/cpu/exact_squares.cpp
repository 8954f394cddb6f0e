#include "kernels/cpu/exact_squares.h"

#include <cmath>
#include <limits>

namespace shardpipe::kernels {
namespace {

__extension__ typedef unsigned __int128 Sum;
constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

SquareWords exact_squares(const ExactForm& form, const float* x, int64_t count) {
  const double quanta_of_one = std::ldexp(1.0, -form.quantum_log2);
  Sum sum = 0;
  bool fits = true;
  for (int64_t i = 0; i < count; ++i) {
    const double quanta = std::abs(static_cast<double>(x[i]) * quanta_of_one);  // exact: 24 bits, a power of 2
    const bool is_right = quanta <= 0x1p62;                                     // false for NaN
    const auto whole = static_cast<uint64_t>(is_right ? quanta : 0.0);
    Sum square = static_cast<Sum>(whole) * whole;
    fits = fits && is_right && static_cast<double>(whole) == quanta && !__builtin_add_overflow(sum, square, &sum);
  }
  SquareWords words{};
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = static_cast<double>(static_cast<uint32_t>(sum >> (32 * static_cast<int>(i))));
  if (!fits) words.back() = infinity;
  return words;
}

void add_words(const double* words, SquareWords& sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += words[i];
}

double squares_of_words(const ExactForm& form, const SquareWords& words) {
  if (!(words.back() < 0x1p32)) return infinity;
  Sum sum = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const Sum word = static_cast<uint64_t>(words[i]);
    if (__builtin_add_overflow(sum, word << (32 * static_cast<int>(i)), &sum)) return infinity;
  }
  return std::ldexp(static_cast<double>(sum), 2 * form.quantum_log2);
}

}  // namespace shardpipe::kernels
