#include <base/error.h>
#include <kernels/cpu/exact_sum.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "kernels/check.h"
#include "kernels/targets.h"

namespace shardpipe::kernels::test {
namespace {

using Integers = std::vector<int64_t>;
__extension__ using Integer128 = __int128;

constexpr ExactForm plain{};  // quantum 2^-30, one contribution: up to ±2^21
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float smallest = std::numeric_limits<float>::denorm_min();

// x / 2^quantum_log2 to nearest even, by the digits of x: its integer part and what is left, compared with a half.
int64_t naive_quanta(float x, int quantum_log2) {
  int exponent = 0;
  const float fraction = std::frexp(std::abs(x), &exponent);           // in [1/2, 1)
  const auto digits = static_cast<int64_t>(std::ldexp(fraction, 24));  // |x| = digits · 2^(exponent - 24)
  const int shift = exponent - 24 - quantum_log2;
  int64_t quanta = 0;
  if (shift >= 0) {
    quanta = digits << shift;
  } else if (shift > -40) {
    const int64_t unit = int64_t{1} << -shift, rest = digits % unit;
    quanta = digits / unit;
    if (2 * rest > unit || (2 * rest == unit && quanta % 2 == 1)) ++quanta;
  }
  return x < 0 ? -quanta : quanta;
}

// The float nearest to sum · 2^quantum_log2, ties to even, by comparing distances with its neighbours.
float naive_float(int64_t sum, int quantum_log2) {
  const Integer128 exact = sum;
  // a first guess, then whichever float around it is nearest
  const float guess = static_cast<float>(static_cast<double>(sum));
  float best = guess;
  Integer128 best_distance = -1;
  for (const float candidate : {std::nextafterf(guess, -infinity), guess, std::nextafterf(guess, infinity)}) {
    // Floats of 2^24 and more are integers; below, the integer itself is a float, and `guess` is it.
    if (candidate != std::trunc(candidate)) continue;
    const Integer128 difference = static_cast<Integer128>(candidate) - exact;
    const Integer128 distance = difference < 0 ? -difference : difference;
    const bool even = std::bit_cast<uint32_t>(candidate) % 2 == 0;
    if (best_distance < 0 || distance < best_distance || (distance == best_distance && even)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return std::ldexp(best, quantum_log2);
}

int64_t quanta_of(float x, const ExactForm& form = plain) {
  int64_t sum = -1;
  EXPECT_EQ(exact_add(form, &x, &sum, 1, false), 0) << x;
  return sum;
}

float float_of(int64_t sum, const ExactForm& form = plain) {
  float out = not_a_number;
  exact_to_float(form, &sum, &out, 1);
  return out;
}

// Magnitudes from far below the quantum to the end of the range, of both signs.
Floats wide_floats(int64_t count, uint32_t seed, int lowest_log2 = -45, int highest_log2 = 20) {
  std::mt19937 generator(seed);
  Floats values(static_cast<size_t>(count));
  for (float& value : values) {
    const int span = highest_log2 - lowest_log2;
    const int exponent = lowest_log2 + static_cast<int>(generator() % static_cast<uint32_t>(span));
    const float digits = 1.0f + static_cast<float>(generator() >> 9) * 0x1p-23f;
    value = std::ldexp(generator() % 2 ? digits : -digits, exponent);
  }
  return values;
}

TEST(ExactForm, RangeLeavesRoomForEveryContribution) {
  EXPECT_EQ(exact_range_log2({.quantum_log2 = -30, .contributions = 1}), 21);
  EXPECT_EQ(exact_range_log2({.quantum_log2 = -30, .contributions = 2048}), 21);
  EXPECT_EQ(exact_range_log2({.quantum_log2 = -30, .contributions = 2049}), 20);
  EXPECT_EQ(exact_range_log2({.quantum_log2 = -30, .contributions = 4096}), 20);
  EXPECT_EQ(exact_range_log2({.quantum_log2 = -14, .contributions = 4096}), 36);
  for (const int64_t contributions : {int64_t{1}, int64_t{3}, int64_t{4095}, int64_t{100'000}, int64_t{1} << 40}) {
    const ExactForm form{.contributions = contributions};
    const auto largest = static_cast<Integer128>(1) << (exact_range_log2(form) - form.quantum_log2);
    EXPECT_LE(largest * contributions, static_cast<Integer128>(1) << 62) << contributions;
  }
}

TEST(ExactForm, OutsideItsLimitsIsRefused) {
  const ExactForm wrong[] = {
      {.quantum_log2 = -127}, {.quantum_log2 = 65}, {.contributions = 0}, {.contributions = (int64_t{1} << 40) + 1}};
  const float x = 1;
  float out = 0;
  int64_t sum = 0;
  for (const ExactForm& form : wrong) {
    EXPECT_THROW(exact_range_log2(form), InvariantError);
    EXPECT_THROW(static_cast<void>(exact_add(form, &x, &sum, 1, false)), InvariantError);
    EXPECT_THROW(exact_to_float(form, &sum, &out, 1), InvariantError);
  }
}

TEST(ExactAdd, IsTheNearestIntegerOverAllMagnitudes) {
  under_each_target([] {
    for (const int quantum_log2 : {-126, -60, -30, -14, 0, 40, 64}) {
      const ExactForm form{.quantum_log2 = quantum_log2};
      const int range = exact_range_log2(form);
      const Floats x = wide_floats(4099, 1, std::max(-149, quantum_log2 - 30), range);
      Integers sum(x.size(), 7);
      ASSERT_EQ(exact_add(form, x.data(), sum.data(), static_cast<int64_t>(x.size()), false), 0);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(sum[i], naive_quanta(x[i], quantum_log2)) << x[i];
    }
  });
}

TEST(ExactAdd, RoundsHalvesToEven) {
  under_each_target([] {
    const float quantum = 0x1p-30f;
    EXPECT_EQ(quanta_of(0.5f * quantum), 0);
    EXPECT_EQ(quanta_of(1.5f * quantum), 2);
    EXPECT_EQ(quanta_of(2.5f * quantum), 2);
    EXPECT_EQ(quanta_of(-0.5f * quantum), 0);
    EXPECT_EQ(quanta_of(-1.5f * quantum), -2);
    EXPECT_EQ(quanta_of(-2.5f * quantum), -2);
    EXPECT_EQ(quanta_of(std::nextafter(0.5f * quantum, infinity)), 1);
    EXPECT_EQ(quanta_of(std::nextafter(1.5f * quantum, 0.0f)), 1);
    EXPECT_EQ(quanta_of(4'194'303.5f * quantum), 4'194'304);
    EXPECT_EQ(quanta_of(4'194'304.5f * quantum), 4'194'304);
  });
}

TEST(ExactAdd, SubnormalsAndSignedZerosAddNothing) {
  under_each_target([] {
    for (const float x : {0.0f, -0.0f, smallest, -smallest, std::numeric_limits<float>::min(), -0x1p-31f, 0x1p-31f}) {
      EXPECT_EQ(quanta_of(x), 0) << x;
      EXPECT_EQ(std::bit_cast<uint32_t>(float_of(quanta_of(x))), 0u) << "a sum of 0 is +0, from " << x;
    }
    const ExactForm finest{.quantum_log2 = -126};
    EXPECT_EQ(quanta_of(0x1p-126f, finest), 1);
    EXPECT_EQ(quanta_of(0x1.8p-126f, finest), 2) << "a half";
    EXPECT_EQ(quanta_of(0x0.fffffep-126f, finest), 1) << "the largest subnormal";
    EXPECT_EQ(quanta_of(0x0.8p-126f, finest), 0) << "a half";
    EXPECT_EQ(quanta_of(0x0.800002p-126f, finest), 1);
    EXPECT_EQ(quanta_of(smallest, finest), 0);
  });
}

TEST(ExactAdd, CountsWhatIsOutOfRangeAndNeverWraps) {
  under_each_target([] {
    for (const ExactForm form : {plain, ExactForm{.contributions = 4096}, ExactForm{.quantum_log2 = 64}}) {
      const float largest = std::ldexp(1.0f, exact_range_log2(form));
      EXPECT_EQ(quanta_of(largest, form), int64_t{1} << (exact_range_log2(form) - form.quantum_log2));
      EXPECT_EQ(quanta_of(-largest, form), -(int64_t{1} << (exact_range_log2(form) - form.quantum_log2)));
      const float beyond = std::nextafter(largest, infinity);
      for (const float bad :
           {beyond, -beyond, std::numeric_limits<float>::max(), infinity, -infinity, not_a_number, -not_a_number}) {
        for (const int64_t count : {1, 2, 3, 7, 8, 17, 64, 1001}) {
          const Floats good(static_cast<size_t>(count), 1.0f);
          Integers expected(good.size());
          ASSERT_EQ(exact_add({.quantum_log2 = 0}, good.data(), expected.data(), count, false), 0);
          for (const int64_t place : {int64_t{0}, count / 2, count - 1}) {
            Floats x(good.size(), std::ldexp(1.0f, form.quantum_log2));
            x[static_cast<size_t>(place)] = bad;
            Integers sum(good.size(), 41);
            ASSERT_EQ(exact_add(form, x.data(), sum.data(), count, true), 1) << bad << " at " << place;
            for (int64_t i = 0; i < count; ++i) {
              ASSERT_EQ(sum[static_cast<size_t>(i)], i == place ? 41 : 42) << "an element that is lost adds 0";
            }
          }
          const Floats all(good.size(), bad);
          Integers sum(good.size(), 5);
          ASSERT_EQ(exact_add(form, all.data(), sum.data(), count, false), count);
          ASSERT_EQ(sum, Integers(good.size(), 0));
        }
      }
    }
  });
}

TEST(ExactAdd, AsManyOfTheLargestAsTheFormAllowsDoNotWrap) {
  const ExactForm form{.contributions = 5000};
  const float largest = std::ldexp(1.0f, exact_range_log2(form));
  for (const float x : {largest, -largest}) {
    Integer128 expected = 0;
    int64_t sum = 0;
    for (int64_t i = 0; i < form.contributions; ++i) {
      ASSERT_EQ(exact_add(form, &x, &sum, 1, true), 0);
      expected += static_cast<Integer128>(std::ldexp(x, -form.quantum_log2));
    }
    EXPECT_EQ(static_cast<Integer128>(sum), expected);
    EXPECT_EQ(float_of(sum, form), 5000 * x);
  }
}

TEST(ExactAdd, EveryLengthAtEveryAddressWritesItsElementsOnly) {
  under_each_target([] {
    const Floats x = wide_floats(100, 3);
    for (int64_t count = 0; count <= 70; ++count) {
      for (size_t offset = 0; offset < 8; ++offset) {
        Floats moved(offset);
        moved.insert(moved.end(), x.begin(), x.begin() + count);  // ends with the memory: a read beyond is an error
        for (const bool accumulate : {false, true}) {
          Integers sum(offset / 2 + static_cast<size_t>(count) + 1, 1000);
          int64_t* first = sum.data() + offset / 2;
          ASSERT_EQ(exact_add(plain, moved.data() + offset, first, count, accumulate), 0);
          for (int64_t i = 0; i < count; ++i) {
            ASSERT_EQ(first[i], naive_quanta(x[static_cast<size_t>(i)], -30) + (accumulate ? 1000 : 0));
          }
          ASSERT_EQ(sum.back(), 1000) << "beyond " << count;
          Floats back(offset + static_cast<size_t>(count) + 1, 5.0f);
          exact_to_float(plain, first, back.data() + offset, count);
          for (int64_t i = 0; i < count; ++i) {
            ASSERT_EQ(back[offset + static_cast<size_t>(i)], naive_float(first[i], -30));
          }
          ASSERT_EQ(back.back(), 5.0f) << "beyond " << count;
        }
      }
    }
  });
}

TEST(ExactToFloat, IsTheNearestFloatAndHalvesGoToEven) {
  under_each_target([] {
    Integers sums = {0, 1, -1, 3, (1 << 24) - 1, 1 << 24, (1 << 24) + 1, (1 << 24) + 2, (1 << 24) + 3};
    // around every halfway point between two floats of each exponent, in the parts that are and are not a double
    for (int bit = 24; bit < 63; ++bit) {
      const int64_t power = int64_t{1} << bit, place = power >> 23, half = std::max<int64_t>(place / 2, 1);
      for (const int64_t even : {power, power + 2 * place, 2 * (power / 2 - place) + power}) {
        for (const int64_t around : {half - 1, half, half + 1, place + half - 1, place + half, place + half + 1}) {
          if (const Integer128 sum = static_cast<Integer128>(even) + around; sum < (Integer128{1} << 63)) {
            sums.push_back(static_cast<int64_t>(sum));
          }
        }
      }
      sums.push_back(power - 1);
    }
    sums.push_back(std::numeric_limits<int64_t>::max());
    sums.push_back(-std::numeric_limits<int64_t>::max());
    std::mt19937_64 generator(7);
    for (int i = 0; i < 20'000; ++i) {
      sums.push_back(static_cast<int64_t>(generator() >> (1 + generator() % 63)));
    }
    const size_t positive = sums.size();
    for (size_t i = 0; i < positive; ++i) sums.push_back(-sums[i]);
    for (const int quantum_log2 : {-126, -30, 0, 60}) {
      Floats out(sums.size());
      exact_to_float({.quantum_log2 = quantum_log2}, sums.data(), out.data(), static_cast<int64_t>(sums.size()));
      for (size_t i = 0; i < sums.size(); ++i) {
        ASSERT_EQ(out[i], naive_float(sums[i], quantum_log2)) << sums[i];
      }
    }
  });
}

TEST(ExactToFloat, GivesBackEveryFloatThatWasHeldExactly) {
  under_each_target([] {
    const Floats x = wide_floats(5000, 11, -7, 20);
    Integers sum(x.size());
    Floats back(x.size());
    ASSERT_EQ(exact_add(plain, x.data(), sum.data(), 5000, false), 0);
    exact_to_float(plain, sum.data(), back.data(), 5000);
    EXPECT_TRUE(same_bits(back, x));
  });
}

TEST(ExactSum, CancellationLosesNothing) {
  const ExactForm form{.quantum_log2 = -20, .contributions = 4};  // up to 2^31
  const float tiny = 0x1p-20f;
  for (const std::vector<float>& order :
       {std::vector<float>{1e8f, tiny, -1e8f}, {1e8f, -1e8f, tiny}, {tiny, 1e8f, -1e8f}}) {
    int64_t sum = 0;
    for (const float& x : order) ASSERT_EQ(exact_add(form, &x, &sum, 1, true), 0);
    EXPECT_EQ(float_of(sum, form), tiny);
  }
}

// Contributions [contribution][element] of which sums in fp32 depend on the order badly.
std::vector<Floats> adversarial_contributions(size_t contributions, int64_t elements) {
  std::vector<Floats> rows;
  for (size_t row = 0; row < contributions; ++row) {
    rows.push_back(wide_floats(elements, static_cast<uint32_t>(100 + row), -40, 17));
    if (row % 3 == 2) {  // almost the opposite of one before: what is left is small
      for (size_t i = 0; i < rows[row].size(); ++i) rows[row][i] = -std::nextafter(rows[row - 1][i], infinity);
    }
  }
  return rows;
}

TEST(ExactSum, EveryOrderAndGroupingOverRanksGivesTheSameBits) {
  constexpr int64_t elements = 133;
  constexpr size_t contributions = 48;
  const ExactForm form{.contributions = contributions};
  const std::vector<Floats> rows = adversarial_contributions(contributions, elements);
  Floats expected(elements), one_order_of_floats(elements);
  bool floats_differ = false;
  for (size_t i = 0; i < elements; ++i) {
    Integer128 sum = 0;
    for (const Floats& row : rows) sum += naive_quanta(row[i], form.quantum_log2);
    ASSERT_EQ(sum, static_cast<Integer128>(static_cast<int64_t>(sum)));
    expected[i] = naive_float(static_cast<int64_t>(sum), form.quantum_log2);
    for (const Floats& row : rows) one_order_of_floats[i] += row[i];
  }

  under_each_target([&] {
    std::mt19937 generator(9);
    for (int trial = 0; trial < 60; ++trial) {
      std::vector<size_t> order(contributions);
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), generator);
      const size_t ranks = 1 + generator() % 7;
      std::vector<Integers> sums(ranks, Integers(elements, 0));
      Floats floats(elements, 0.0f);
      for (const size_t row : order) {
        Integers& sum = sums[generator() % ranks];
        ASSERT_EQ(exact_add(form, rows[row].data(), sum.data(), elements, true), 0);
        for (size_t i = 0; i < elements; ++i) floats[i] += rows[row][i];
      }
      floats_differ = floats_differ || !same_bits(floats, one_order_of_floats);
      // the ranks meet two or three at a time, in any order, as trees and rings do
      while (sums.size() > 1) {
        std::shuffle(sums.begin(), sums.end(), generator);
        const size_t meet = std::min<size_t>(2 + generator() % 2, sums.size());
        std::vector<const int64_t*> inputs;
        for (size_t i = sums.size() - meet; i < sums.size(); ++i) inputs.push_back(sums[i].data());
        Integers met(elements, -1);
        sum_in_order(inputs.data(), static_cast<int64_t>(meet), met.data(), elements, false);
        sums.resize(sums.size() - meet);
        sums.push_back(met);
      }
      Floats found(elements);
      exact_to_float(form, sums[0].data(), found.data(), elements);
      ASSERT_TRUE(same_bits(found, expected)) << "trial " << trial << ", " << ranks << " ranks";
    }
  });
  EXPECT_TRUE(floats_differ) << "the contributions would have been no test";
}

TEST(SumInOrderOfIntegers, IsTheSumForEveryLengthInPlaceToo) {
  under_each_target([] {
    std::mt19937_64 generator(3);
    for (int64_t count = 0; count <= 40; ++count) {
      std::vector<Integers> inputs(5, Integers(static_cast<size_t>(count)));
      for (Integers& input : inputs) {
        for (int64_t& value : input) value = static_cast<int64_t>(generator()) >> 4;
      }
      for (int64_t ranks = 0; ranks <= 5; ++ranks) {
        std::vector<const int64_t*> pointers;
        for (int64_t rank = 0; rank < ranks; ++rank) pointers.push_back(inputs[static_cast<size_t>(rank)].data());
        Integers expected(static_cast<size_t>(count), 0);
        for (int64_t rank = 0; rank < ranks; ++rank) {
          for (size_t i = 0; i < expected.size(); ++i) expected[i] += inputs[static_cast<size_t>(rank)][i];
        }
        Integers overwritten(expected.size(), 11), added(expected.size(), 11);
        sum_in_order(pointers.data(), ranks, overwritten.data(), count, false);
        sum_in_order(pointers.data(), ranks, added.data(), count, true);
        ASSERT_EQ(overwritten, expected);
        for (size_t i = 0; i < added.size(); ++i) ASSERT_EQ(added[i], expected[i] + 11);
        if (ranks > 0) {
          Integers into = inputs[0];
          pointers[0] = into.data();
          sum_in_order(pointers.data(), ranks, into.data(), count, false);
          ASSERT_EQ(into, expected) << "the result may replace an input";
        }
      }
    }
  });
}

}  // namespace
}  // namespace shardpipe::kernels::test
