// Sums of squares that do not depend on any order, for the norm of gradients that exact sums (exact_sum.h) gave: each
// element is a whole number of quanta, so its square is a whole number of quanta², and such numbers are added in 128
// bits. A sum is handed on as four words of 32 bits, each in a double, so that an all-reduce of doubles adds up the
// sums of up to 2^21 parts exactly; only the whole sum is rounded to a double.
#pragma once
#include <array>
#include <cstdint>

#include "kernels/cpu/exact_sum.h"

namespace shardpipe::kernels {

using SquareWords = std::array<double, 4>;  // Σ words[i] · 2^(32 i) quanta²; the last is infinity: 2^128 or more

// Of x[0] … x[count - 1]. Infinity also where an element is no multiple of the quantum, or is beyond ±2^62 quanta: no
// exact sum gives such a one.
SquareWords exact_squares(const ExactForm&, const float* x, int64_t count);

// Word by word.
void add_words(const double* words, SquareWords& sum);

// The sum as a double, rounded once; infinity for 2^128 quanta² or more.
double squares_of_words(const ExactForm&, const SquareWords&);

}  // namespace shardpipe::kernels
