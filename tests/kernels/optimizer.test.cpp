#include <kernels/cpu/activation.h>
#include <kernels/cpu/optimizer.h>

#include <algorithm>
#include <limits>

#include "kernels/check.h"

namespace shardpipe::kernels::test {
namespace {

AdamW adamw_at_step(int step) {
  return {.learning_rate = 1e-2f,
          .beta1 = 0.9,
          .beta2 = 0.999,
          .epsilon = 1e-8f,
          .weight_decay = 0.1f,
          .bias_correction1 = static_cast<float>(1 - std::pow(0.9, step)),
          .bias_correction2 = static_cast<float>(1 - std::pow(0.999, step)),
          .gradient_scale = 0.25f};
}

TEST(AdamWStep, IsTheFormulaOverManySteps) {
  constexpr int64_t count = 65;
  Floats parameter = random_floats(count, 1), m(count), v(count);
  Doubles expected = widen(parameter), expected_m(count), expected_v(count);
  for (int step = 1; step <= 20; ++step) {
    const Floats gradient = random_floats(count, 100u + static_cast<uint32_t>(step));
    adamw_step(adamw_at_step(step), parameter.data(), gradient.data(), m.data(), v.data(), count);
    for (size_t i = 0; i < count; ++i) {
      const double g = 0.25 * double{gradient[i]};
      expected[i] *= 1 - 1e-2 * 0.1;
      expected_m[i] = 0.9 * expected_m[i] + 0.1 * g;
      expected_v[i] = 0.999 * expected_v[i] + 0.001 * g * g;
      const double m_hat = expected_m[i] / (1 - std::pow(0.9, step));
      const double v_hat = expected_v[i] / (1 - std::pow(0.999, step));
      expected[i] -= 1e-2 * m_hat / (std::sqrt(v_hat) + 1e-8);
    }
    expect_close(parameter, expected, 1e-6, "parameter");
  }
  expect_close(m, expected_m, 1e-6, "m");
  for (size_t i = 0; i < count; ++i) EXPECT_NEAR(double{v[i]} / expected_v[i], 1, 2e-6) << i;
}

TEST(SgdStep, IsTheFormula) {
  const Floats before = random_floats(65, 1), gradient = random_floats(65, 2);
  Floats parameter = before;
  sgd_step({.learning_rate = 0.1f, .weight_decay = 0.5f, .gradient_scale = 2}, parameter.data(), gradient.data(), 65);
  for (size_t i = 0; i < 65; ++i) {
    EXPECT_NEAR(double{parameter[i]}, double{before[i]} * 0.95 - 0.2 * double{gradient[i]}, 1e-6);
  }
}

TEST(SumOfSquares, IsTheFormulaForEveryCount) {
  for (const int64_t count : {0, 1, 3, 16, 17, 65, 1000}) {
    const Floats x = random_floats(count, 1, -1e4f, 1e4f);
    double expected = 0;
    for (const float value : x) expected += double{value} * double{value};
    EXPECT_NEAR(sum_of_squares(x.data(), count), expected, 1e-13 * expected) << count;
  }
  const Floats huge(100, 1e30f);
  EXPECT_NEAR(sum_of_squares(huge.data(), 100) / 1e62, 1, 1e-6) << "squares that no float can hold";
}

// ((0 + 1) + (2 + 3)) + (4 + 5)
float pairwise(std::vector<float> terms) {
  for (; terms.size() > 1; terms.resize((terms.size() + 1) / 2))
    for (size_t k = 0; k < terms.size(); k += 2)
      terms[k / 2] = k + 1 < terms.size() ? terms[k] + terms[k + 1] : terms[k];
  return terms[0];
}

TEST(SumInOrder, IsThePairwiseSumOfRanksInOrder) {
  constexpr int64_t count = 65;
  std::vector<Floats> inputs;
  for (uint32_t rank = 0; rank < 33; ++rank)
    inputs.push_back(random_floats(count, rank, -std::ldexp(1.0f, static_cast<int>(rank % 20)), 1e3f));
  for (size_t ranks = 1; ranks <= inputs.size(); ++ranks) {
    std::vector<const float*> pointers;
    for (size_t rank = 0; rank < ranks; ++rank) pointers.push_back(inputs[rank].data());
    Floats overwritten = random_floats(count, 4), added = overwritten;
    const Floats before = overwritten;
    sum_in_order(pointers.data(), static_cast<int64_t>(ranks), overwritten.data(), count, false);
    sum_in_order(pointers.data(), static_cast<int64_t>(ranks), added.data(), count, true);
    for (size_t i = 0; i < count; ++i) {
      std::vector<float> terms;
      for (size_t rank = 0; rank < ranks; ++rank) terms.push_back(inputs[rank][i]);
      const float sum = pairwise(terms);
      ASSERT_EQ(overwritten[i], sum);
      ASSERT_EQ(added[i], before[i] + sum);
    }
  }
}

// What lets a layout sum shard groups first and then across them.
TEST(SumInOrder, OfGroupsOfAPowerOfTwoEachSummedByItselfHasTheSameBits) {
  constexpr int64_t count = 40;
  for (const int64_t ranks : {2, 4, 6, 8, 12, 16, 24})
    for (int64_t group = 1; group <= ranks; group *= 2) {
      if (ranks % group != 0) continue;
      std::vector<Floats> inputs;
      for (int64_t rank = 0; rank < ranks; ++rank)
        inputs.push_back(
            random_floats(count, static_cast<uint32_t>(rank), -1e3f, std::ldexp(1.0f, static_cast<int>(rank))));
      std::vector<const float*> pointers;
      for (const Floats& input : inputs) pointers.push_back(input.data());
      Floats whole(count), of_groups(count);
      sum_in_order(pointers.data(), ranks, whole.data(), count, false);
      std::vector<Floats> sums;
      for (int64_t first = 0; first < ranks; first += group)
        sum_in_order(pointers.data() + first, group, sums.emplace_back(count).data(), count, false);
      std::vector<const float*> parts;
      for (const Floats& sum : sums) parts.push_back(sum.data());
      sum_in_order(parts.data(), std::ssize(parts), of_groups.data(), count, false);
      EXPECT_TRUE(same_bits(of_groups, whole)) << ranks << " in groups of " << group;
    }
}

TEST(SumInOrder, ResultMayReplaceAnInput) {
  constexpr int64_t count = 37;
  const Floats a = random_floats(count, 1), b = random_floats(count, 2);
  Floats first = a, second = b, expected(count);
  const float* both[] = {a.data(), b.data()};
  sum_in_order(both, 2, expected.data(), count, false);
  const float* into_first[] = {first.data(), b.data()};
  sum_in_order(into_first, 2, first.data(), count, false);
  const float* into_second[] = {a.data(), second.data()};
  sum_in_order(into_second, 2, second.data(), count, false);
  EXPECT_TRUE(same_bits(first, expected));
  EXPECT_TRUE(same_bits(second, expected));
}

TEST(SumInOrder, OfDoublesKeepsTheirPrecision) {
  const Doubles a = {1.0, 2.0, 3.0, 4.0, 5.0}, b(5, 1e-12);
  const double* both[] = {a.data(), b.data()};
  Doubles out(5, 7.0);
  sum_in_order(both, 2, out.data(), 5, false);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(out[i], a[i] + 1e-12);
  sum_in_order(both, 2, out.data(), 5, true);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(out[i], (a[i] + 1e-12) + (a[i] + 1e-12));
}

TEST(AllFinite, FindsOneBadElementAnywhere) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t count : {1, 3, 17, 65, 5000}) {
    Floats x = random_floats(count, 1);
    x[0] = std::numeric_limits<float>::max();
    EXPECT_TRUE(all_finite(x.data(), count));
    for (int64_t place : {int64_t{0}, count / 2, count - 1}) {
      for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
        Floats spoilt = x;
        spoilt[static_cast<size_t>(place)] = bad;
        EXPECT_FALSE(all_finite(spoilt.data(), count)) << bad << " at " << place << " of " << count;
      }
    }
  }
  EXPECT_TRUE(all_finite<float>(nullptr, 0));
}

// Shards cut a tensor at places that depend on the layout, and their copies lie anywhere: every elementwise kernel, run
// over a tensor in one piece and cut in pieces at shifted addresses.
struct Elementwise {
  const char* name;
  // outputs (in place where the kernel is) from three inputs of `count` elements
  void (*run)(float* x, float* y, float* z, int64_t count);
};

class ElementwiseBits : public testing::TestWithParam<Elementwise> {};

TEST_P(ElementwiseBits, DoNotDependOnHowATensorIsCutNorOnItsAddress) {
  constexpr int64_t count = 517;
  const Floats x = random_floats(count, 1, -8, 8), y = random_floats(count, 2), z = random_floats(count, 3, 0, 1);
  Floats whole_x = x, whole_y = y, whole_z = z;
  GetParam().run(whole_x.data(), whole_y.data(), whole_z.data(), count);
  EXPECT_FALSE(same_bits(whole_x, x) && same_bits(whole_y, y) && same_bits(whole_z, z));

  std::mt19937 generator(5);
  for (size_t offset = 0; offset < 16; ++offset) {
    Floats cut_x, cut_y, cut_z;
    for (int64_t first = 0; first < count;) {
      const int64_t length = std::min(count - first, static_cast<int64_t>(generator() % 70));
      const auto piece = [&](const Floats& from, size_t shift) {
        Floats to(shift);
        to.insert(to.end(), from.begin() + first, from.begin() + first + length);
        return to;
      };
      Floats px = piece(x, offset), py = piece(y, (offset + 5) % 16), pz = piece(z, (offset + 11) % 16);
      GetParam().run(px.data() + offset, py.data() + (offset + 5) % 16, pz.data() + (offset + 11) % 16, length);
      cut_x.insert(cut_x.end(), px.begin() + static_cast<int64_t>(offset), px.end());
      cut_y.insert(cut_y.end(), py.begin() + static_cast<int64_t>((offset + 5) % 16), py.end());
      cut_z.insert(cut_z.end(), pz.begin() + static_cast<int64_t>((offset + 11) % 16), pz.end());
      first += length;
    }
    ASSERT_TRUE(same_bits(cut_x, whole_x)) << "offset " << offset;
    ASSERT_TRUE(same_bits(cut_y, whole_y)) << "offset " << offset;
    ASSERT_TRUE(same_bits(cut_z, whole_z)) << "offset " << offset;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, ElementwiseBits,
    testing::Values(Elementwise{"adamw",
                                [](float* x, float* y, float* z, int64_t n) {
                                  const Floats gradient(x, x + n);
                                  adamw_step(adamw_at_step(3), x, gradient.data(), y, z, n);
                                }},
                    Elementwise{"sgd",
                                [](float* x, float* y, float*, int64_t n) {
                                  sgd_step({0.1f, 0.5f, 2}, x, y, n);
                                }},
                    Elementwise{"gelu_forward", [](float* x, float* y, float*, int64_t n) { gelu_forward(x, y, n); }},
                    Elementwise{"gelu_backward",
                                [](float* x, float* y, float* z, int64_t n) { gelu_backward_input(y, x, z, x, n); }},
                    Elementwise{"swiglu_forward",
                                [](float* x, float* y, float* z, int64_t n) { swiglu_forward(x, y, z, n); }},
                    Elementwise{"swiglu_backward",
                                [](float* x, float* y, float* z, int64_t n) {
                                  Floats gate(x, x + n);
                                  const Floats up(y, y + n);
                                  swiglu_backward_input(z, gate.data(), up.data(), x, y, gate.data(), n);
                                  std::ranges::copy(gate, z);
                                }},
                    Elementwise{"add", [](float* x, float* y, float*, int64_t n) { add(x, y, n); }},
                    Elementwise{"sum_in_order",
                                [](float* x, float* y, float* z, int64_t n) {
                                  const float* inputs[] = {x, y, x};
                                  sum_in_order(inputs, 3, z, n, true);
                                }}),
    [](const auto& instance) { return instance.param.name; });

TEST(ReductionBits, DoNotDependOnAddresses) {
  const Floats x = random_floats(517, 1);
  const double expected = sum_of_squares(x.data(), 517);
  for (size_t offset = 0; offset < 16; ++offset) {
    Floats moved(offset);
    moved.insert(moved.end(), x.begin(), x.end());
    EXPECT_EQ(sum_of_squares(moved.data() + offset, 517), expected) << offset;
  }
}

}  // namespace
}  // namespace shardpipe::kernels::test
