// Sums of gradients that do not depend on any order: 64-bit fixed point. Each contribution (what one micro-batch gives
// one use of a parameter, in fp32) is rounded once, on its own, to a multiple of a quantum; from there on everything is
// plain addition of int64, which is associative. So the bits are the same for every order of micro-batches, every
// grouping over ranks and every library's sum of int64.
//
// The form is fixed before a run (it never looks at the data), and is argued like this:
// - Resolution. The quantum of 2^-30 is an absolute one, of the gradient of the loss SUM: rounding moves a contribution
//   by at most 2^-31 = 4.7e-10. A contribution of 2^-7 or more is held exactly (its last place is a quantum or more);
//   one of 2^-31 or less, subnormals among them, becomes 0. The gradient that counts is the sum divided by the tokens,
//   of which each contribution brings at least one: so it moves by less than 4.7e-10 too, far below the 1e-8 that AdamW
//   adds to its denominator. Gradients that carry a loss scale of 2^s want a quantum of 2^(s-30).
// - Range. A sum of N contributions stays within ±2^62 quanta if each is within 2^62 / N, so no sum, whole or partial,
//   in whatever order, can wrap. Up to 2,048 contributions each may be ±2^51 quanta (±2,097,152 with the quantum of
//   2^-30: how a double rounds to an integer allows no more); each doubling of N beyond takes one bit. Whether a
//   contribution is in range depends on itself and on the form alone, hence never on a layout either.
// - Overflow. A contribution that is out of range, infinite or not a number adds 0 and is counted: `exact_add` returns
//   how many there were. No mark inside a sum could be trusted (two INT64_MIN from two ranks add up to 0), a count can:
//   counts of all ranks, summed as int64, are 0 exactly if no contribution anywhere was lost. Where the count is not 0
//   the sums are not what they should be and the step must be skipped or stopped, as after an infinite gradient.
// The price is 8 bytes an element in memory and on the wire instead of 4.
#pragma once
#include <cstdint>

namespace shardpipe::kernels {

struct ExactForm {
  int quantum_log2 = -30;     // a sum counts multiples of 2^quantum_log2; -126 … 64
  int64_t contributions = 1;  // to one element of the whole sum, at most: over micro-batches, ranks and tied uses
};

// ±2^exact_range_log2 is the largest contribution that is in range. Throws InvariantError for a form outside its limits
// (contributions 1 … 2^40), as the functions below do.
int exact_range_log2(const ExactForm&);

// sum[i] = (accumulate ? sum[i] : 0) + x[i] / quantum, rounded to nearest even. Returns how many of x were out of
// range.
[[nodiscard]] int64_t exact_add(const ExactForm&, const float* x, int64_t* sum, int64_t count, bool accumulate);

// out[i] = (accumulate ? out[i] : 0) + in[0][i] + in[1][i] + …: the sum of a collective, for which the order means
// nothing here. `out` may be one of the inputs when it is overwritten.
void sum_in_order(const int64_t* const* in, int64_t inputs, int64_t* out, int64_t count, bool accumulate);

// out[i] = sum[i] · quantum, rounded to nearest even once. A sum of 0 is +0.
void exact_to_float(const ExactForm&, const int64_t* sum, float* out, int64_t count);

}  // namespace shardpipe::kernels
