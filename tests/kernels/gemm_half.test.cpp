#include <kernels/cpu/gemm.h>
#include <kernels/cpu/linear.h>

#include <thread>

#include "kernels/check.h"

namespace shardpipe::kernels::test {
namespace {

// op(a) [m, k] · op(b) [k, n], rows `gap` elements longer than they need be. The large ones are cut in every direction.
struct Problem {
  Transpose transpose_a, transpose_b;
  int64_t m, n, k;
  int64_t gap = 0;
  int64_t lda() const { return (transpose_a == Transpose::Yes ? m : k) + gap; }
  int64_t ldb() const { return (transpose_b == Transpose::Yes ? k : n) + gap; }
  int64_t ldc() const { return n + gap; }
  int64_t a_count() const { return (transpose_a == Transpose::Yes ? k : m) * lda(); }
  int64_t b_count() const { return (transpose_b == Transpose::Yes ? n : k) * ldb(); }
};

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const Transpose ta : {Transpose::No, Transpose::Yes}) {
    for (const Transpose tb : {Transpose::No, Transpose::Yes}) {
      all.insert(all.end(),
                 {{ta, tb, 1, 1, 1}, {ta, tb, 5, 3, 17, 2}, {ta, tb, 65, 64, 63}, {ta, tb, 300, 270, 400, 5}});
    }
  }
  return all;
}

std::string name(const Problem& p) {
  const auto letter = [](Transpose t) { return t == Transpose::Yes ? "T" : "N"; };
  return std::string(letter(p.transpose_a)) + letter(p.transpose_b) + "_" + std::to_string(p.m) + "x" +
         std::to_string(p.n) + "x" + std::to_string(p.k);
}

Doubles naive(const Problem& p, const Floats& a, const Floats& b) {
  Doubles result(static_cast<size_t>(p.m * p.ldc()));
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < p.k; ++l) {
        const int64_t from_a = p.transpose_a == Transpose::Yes ? l * p.lda() + i : i * p.lda() + l;
        const int64_t from_b = p.transpose_b == Transpose::Yes ? j * p.ldb() + l : l * p.ldb() + j;
        sum += double{a[static_cast<size_t>(from_a)]} * double{b[static_cast<size_t>(from_b)]};
      }
      result[static_cast<size_t>(i * p.ldc() + j)] = sum;
    }
  }
  return result;
}

template <HalfElement T>
Floats as_floats(const std::vector<T>& half) {
  Floats full;
  for (const T value : half) full.push_back(to_float(value));
  return full;
}

template <class T>
class HalfGemm : public testing::Test {
 protected:
  struct Matrices {
    Both<T> a, b, c, row;
    explicit Matrices(const Problem& p)
        : a(random_floats(p.a_count(), 1)),
          b(random_floats(p.b_count(), 2)),
          c(random_floats(p.m * p.ldc(), 3)),
          row(random_floats(p.n, 4)) {}
  };
  template <class Out, class... Last>
  static void run(const Problem& p, const T* a, const T* b, Out* c, Last... last) {
    gemm(p.transpose_a, p.transpose_b, p.m, p.n, p.k, a, p.lda(), b, p.ldb(), c, p.ldc(), last...);
  }
};
using Types = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfGemm, Types);

TYPED_TEST(HalfGemm, IntoFp32IsTheFormula) {
  for (const Problem& p : problems()) {
    const typename TestFixture::Matrices given(p);
    const Doubles product = naive(p, given.a.full, given.b.full);
    for (const bool accumulate : {false, true}) {
      Floats c = given.c.full;
      TestFixture::run(p, given.a.half.data(), given.b.half.data(), c.data(), accumulate);
      Doubles expected = widen(given.c.full);  // what lies between the rows stays
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          const auto at = static_cast<size_t>(i * p.ldc() + j);
          expected[at] = product[at] + (accumulate ? expected[at] : 0);
        }
      }
      expect_close(c, expected, 2e-6, name(p).c_str());
    }
  }
}

TYPED_TEST(HalfGemm, IntoItsOwnTypeAddsInFp32AndRoundsOnce) {
  using T = TypeParam;
  for (const Problem& p : problems()) {
    const typename TestFixture::Matrices given(p);
    const Doubles product = naive(p, given.a.full, given.b.full);
    for (const bool with_row : {false, true}) {
      for (const bool with_matrix : {false, true}) {
        std::vector<T> c = given.c.half;
        TestFixture::run(p, given.a.half.data(), given.b.half.data(), c.data(),
                         Addends<T>{with_row ? given.row.half.data() : nullptr, with_matrix ? c.data() : nullptr});
        for (int64_t i = 0; i < p.m; ++i) {
          for (int64_t j = 0; j < p.ldc(); ++j) {
            const auto at = static_cast<size_t>(i * p.ldc() + j);
            if (j >= p.n) {
              ASSERT_EQ(c[at], given.c.half[at]) << "between the rows";
              continue;
            }
            const double expected = product[at] + (with_row ? double{given.row.full[static_cast<size_t>(j)]} : 0) +
                                    (with_matrix ? double{given.c.full[at]} : 0);
            // half a unit of the last place, and what the sum in fp32 is off by
            const double allowed = double{epsilon_of<T>} / 2 * std::abs(expected) + 2e-6 * std::sqrt(p.k);
            ASSERT_NEAR(double{to_float(c[at])}, expected, allowed) << name(p) << " " << i << ", " << j;
          }
        }
      }
    }
  }
}

// What is compared between layouts lies at other addresses in each of them.
TYPED_TEST(HalfGemm, BitsDoNotDependOnAddresses) {
  using T = TypeParam;
  for (const Problem& p : problems()) {
    const typename TestFixture::Matrices given(p);
    std::vector<T> expected = given.c.half;
    TestFixture::run(p, given.a.half.data(), given.b.half.data(), expected.data(), Addends<T>{});
    Floats expected_full = given.c.full;
    TestFixture::run(p, given.a.half.data(), given.b.half.data(), expected_full.data(), true);
    for (size_t offset = 1; offset < 32; offset += 6) {
      const auto moved = [&](const auto& values) {
        auto copy = values;
        copy.insert(copy.begin(), offset, values.front());
        return copy;
      };
      const std::vector<T> a = moved(given.a.half), b = moved(given.b.half);
      std::vector<T> c = moved(given.c.half);
      Floats c_full = moved(given.c.full);
      TestFixture::run(p, a.data() + offset, b.data() + offset, c.data() + offset, Addends<T>{});
      TestFixture::run(p, a.data() + offset, b.data() + offset, c_full.data() + offset, true);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), c.begin() + static_cast<int64_t>(offset))) << name(p);
      ASSERT_EQ(std::memcmp(c_full.data() + offset, expected_full.data(), expected_full.size() * sizeof(float)), 0);
    }
  }
}

TYPED_TEST(HalfGemm, BitsDoNotDependOnOtherThreads) {
  using T = TypeParam;
  const Problem p{Transpose::No, Transpose::Yes, 300, 270, 400};
  const typename TestFixture::Matrices given(p);
  std::vector<T> expected = given.c.half;
  TestFixture::run(p, given.a.half.data(), given.b.half.data(), expected.data(), Addends<T>{});
  std::vector<std::vector<T>> found(3, given.c.half);
  std::vector<std::thread> threads;
  for (std::vector<T>& c : found) {
    threads.emplace_back(
        [&] { TestFixture::run(p, given.a.half.data(), given.b.half.data(), c.data(), Addends<T>{}); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<T>& c : found) EXPECT_EQ(c, expected);
}

TYPED_TEST(HalfGemm, InfinityAndNotANumberAreNotHidden) {
  using T = TypeParam;
  const Problem p{Transpose::No, Transpose::Yes, 65, 64, 63};
  for (const float bad : {NAN, INFINITY}) {
    typename TestFixture::Matrices given(p);
    given.a.half[5] = from_float<T>(bad);
    std::vector<T> c = given.c.half;
    TestFixture::run(p, given.a.half.data(), given.b.half.data(), c.data(), Addends<T>{});
    for (size_t j = 0; j < 64; ++j) EXPECT_FALSE(std::isfinite(to_float(c[j])));
    EXPECT_TRUE(std::isfinite(to_float(c[64])));
  }
  const std::vector<T> large(64, from_float<T>(std::same_as<T, BFloat16> ? 3e38f : 6e4f));
  std::vector<T> c(1);
  gemm(Transpose::No, Transpose::Yes, 1, 1, 64, large.data(), 64, large.data(), 64, c.data(), 1, Addends<T>{});
  EXPECT_EQ(to_float(c[0]), INFINITY);
}

TYPED_TEST(HalfGemm, EmptySumsAreWhatIsAddedAndEmptyMatricesAreNotTouched) {
  using T = TypeParam;
  const Both<T> row({0.5f, 2}), before({1, 2, 3, 4});
  const T* none = nullptr;
  std::vector<T> c = before.half;
  gemm(Transpose::No, Transpose::No, 1, 2, 0, none, 1, none, 2, c.data(), 2, Addends<T>{row.half.data(), c.data()});
  EXPECT_EQ(as_floats(c), Floats({1.5f, 4, 3, 4}));
  gemm(Transpose::No, Transpose::No, 0, 2, 2, none, 2, none, 2, c.data(), 2, Addends<T>{});
  EXPECT_EQ(as_floats(c), Floats({1.5f, 4, 3, 4}));
  Floats full = {1, 2, 3, 4};
  gemm(Transpose::No, Transpose::No, 1, 2, 0, none, 1, none, 2, full.data(), 2, true);
  EXPECT_EQ(full, Floats({1, 2, 3, 4}));
  gemm(Transpose::No, Transpose::No, 1, 2, 0, none, 1, none, 2, full.data(), 2, false);
  EXPECT_EQ(full, Floats({0, 0, 3, 4}));
}

// y = (x·wᵀ + bias) + residual, and the gradients, against fp32 of the same values.
TYPED_TEST(HalfGemm, LinearIsThatOfFp32WithinHalfAUnit) {
  using T = TypeParam;
  constexpr int64_t tokens = 33, in = 20, out = 65;
  const Both<T> x(random_floats(tokens * in, 1)), weight(random_floats(out * in, 2)), bias(random_floats(out, 3)),
      residual(random_floats(tokens * out, 4)), dy(random_floats(tokens * out, 5));
  const double rounding = double{epsilon_of<T>} / 2;
  Both<T> y(residual.half.size()), dx = x;
  for (const bool with : {true, false}) {
    linear_forward(x.half.data(), weight.half.data(), with ? bias.half.data() : nullptr,
                   with ? residual.half.data() : nullptr, y.half.data(), tokens, in, out);
    linear_forward(x.full.data(), weight.full.data(), with ? bias.full.data() : nullptr,
                   with ? residual.full.data() : nullptr, y.full.data(), tokens, in, out);
    expect_close(as_floats(y.half), widen(y.full), rounding + 2e-6, "y");
  }
  for (const bool accumulate : {false, true}) {
    dx = x;
    linear_backward_input(dy.half.data(), weight.half.data(), dx.half.data(), tokens, in, out, accumulate);
    linear_backward_input(dy.full.data(), weight.full.data(), dx.full.data(), tokens, in, out, accumulate);
    expect_close(as_floats(dx.half), widen(dx.full), rounding + 2e-6, "dx");
    Floats dweight = weight.full, dbias = bias.full, dweight_half = dweight, dbias_half = dbias;
    linear_backward_weight(dy.full.data(), x.full.data(), dweight.data(), dbias.data(), tokens, in, out, accumulate);
    linear_backward_weight(dy.half.data(), x.half.data(), dweight_half.data(), dbias_half.data(), tokens, in, out,
                           accumulate);
    expect_close(dweight_half, widen(dweight), 2e-6, "dweight");
    EXPECT_TRUE(same_bits(dbias_half, dbias));
  }
}

TEST(HalfGemmScratch, IsBounded) { EXPECT_LE(half_gemm_scratch_bytes(), uint64_t{1} << 20); }

}  // namespace
}  // namespace shardpipe::kernels::test
