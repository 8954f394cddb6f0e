#include <gmock/gmock.h>
#include <kernels/cpu/gemm.h>

#include <cstdlib>
#include <latch>
#include <new>
#include <thread>

#include "kernels/check.h"
#include "kernels/cpu/linear.h"

namespace shardpipe::kernels::test {
namespace {

thread_local int64_t live_allocations = 0;  // made minus freed, by operator new of this thread
thread_local int64_t all_allocations = 0;

struct Problem {
  Transpose transpose_a, transpose_b;
  int64_t m, n, k;
  int64_t gap = 0;  // elements between rows
  int64_t lda() const { return (transpose_a == Transpose::Yes ? m : k) + gap; }
  int64_t ldb() const { return (transpose_b == Transpose::Yes ? k : n) + gap; }
  int64_t ldc() const { return n + gap; }
  Floats a() const { return random_floats((transpose_a == Transpose::Yes ? k : m) * lda(), 1); }
  Floats b() const { return random_floats((transpose_b == Transpose::Yes ? n : k) * ldb(), 2); }
  Floats c() const { return random_floats(m * ldc(), 3); }
  void run(const float* a, const float* b, float* c, bool accumulate) const {
    gemm(transpose_a, transpose_b, m, n, k, a, lda(), b, ldb(), c, ldc(), accumulate);
  }
};

std::string name(const Problem& p) {
  const auto letter = [](Transpose t) { return t == Transpose::Yes ? "T" : "N"; };
  return std::string(letter(p.transpose_a)) + letter(p.transpose_b) + "_" + std::to_string(p.m) + "x" +
         std::to_string(p.n) + "x" + std::to_string(p.k) + "_gap" + std::to_string(p.gap);
}

Doubles naive(const Problem& p, const Floats& a, const Floats& b, const Floats& c, bool accumulate) {
  Doubles result = widen(c);
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = accumulate ? double{c[static_cast<size_t>(i * p.ldc() + j)]} : 0.0;
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

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const Transpose ta : {Transpose::No, Transpose::Yes}) {
    for (const Transpose tb : {Transpose::No, Transpose::Yes}) {
      all.insert(all.end(), {{ta, tb, 1, 1, 1},
                             {ta, tb, 1, 17, 3},
                             {ta, tb, 5, 1, 65},
                             {ta, tb, 5, 3, 17, 2},
                             {ta, tb, 65, 64, 63},
                             {ta, tb, 64, 96, 32, 5},
                             {ta, tb, 130, 257, 70}});
    }
  }
  return all;
}

class Gemm : public testing::TestWithParam<Problem> {
 protected:
  const Problem problem = GetParam();
  const Floats a = problem.a(), b = problem.b(), c = problem.c();
};

TEST_P(Gemm, IsTheFormula) {
  Floats overwritten = c, added = c;
  problem.run(a.data(), b.data(), overwritten.data(), false);
  problem.run(a.data(), b.data(), added.data(), true);
  expect_close(overwritten, naive(problem, a, b, c, false), 2e-6, "overwritten");
  expect_close(added, naive(problem, a, b, c, true), 2e-6, "added");
}

// What is compared between layouts lies at other addresses in each of them.
TEST_P(Gemm, BitsDoNotDependOnAddresses) {
  for (const bool accumulate : {false, true}) {
    Floats expected = c;
    problem.run(a.data(), b.data(), expected.data(), accumulate);
    for (size_t offset = 0; offset < 16; ++offset) {
      Floats moved_a(a.size() + 32), moved_b(b.size() + 32), moved_c(c.size() + 32);
      const size_t at_a = offset, at_b = (offset * 5 + 3) % 16, at_c = (offset * 11 + 7) % 16;
      std::copy(a.begin(), a.end(), moved_a.begin() + static_cast<int64_t>(at_a));
      std::copy(b.begin(), b.end(), moved_b.begin() + static_cast<int64_t>(at_b));
      std::copy(c.begin(), c.end(), moved_c.begin() + static_cast<int64_t>(at_c));
      problem.run(moved_a.data() + at_a, moved_b.data() + at_b, moved_c.data() + at_c, accumulate);
      ASSERT_EQ(std::memcmp(moved_c.data() + at_c, expected.data(), c.size() * sizeof(float)), 0) << offset;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Gemm, testing::ValuesIn(problems()),
                         [](const auto& instance) { return name(instance.param); });

TEST(GemmBits, DoNotDependOnOtherThreads) {
  const std::vector<Problem> shapes = {{Transpose::No, Transpose::Yes, 256, 320, 320},
                                       {Transpose::No, Transpose::No, 256, 320, 96},
                                       {Transpose::Yes, Transpose::No, 96, 320, 256},
                                       {Transpose::No, Transpose::Yes, 7, 65, 33}};
  std::vector<Floats> expected;
  for (const Problem& p : shapes) {
    expected.push_back(p.c());
    p.run(p.a().data(), p.b().data(), expected.back().data(), true);
  }
  std::vector<int> differences(4, 0);
  std::vector<std::thread> threads;
  for (int& count : differences) {
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 3; ++repeat) {
        for (size_t i = 0; i < shapes.size(); ++i) {
          Floats c = shapes[i].c();
          shapes[i].run(shapes[i].a().data(), shapes[i].b().data(), c.data(), true);
          count += !same_bits(c, expected[i]);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differences, std::vector<int>(4, 0));
}

// In a process of its own each time: what is set up once in a process may be in each thread's way.
TEST(GemmThreads, MayAllBeginAtOnceAndEnd) {
  const auto run = [] {
    const Problem problem = {Transpose::No, Transpose::Yes, 7, 65, 33};
    const Floats a = problem.a(), b = problem.b();
    std::latch all_there(8);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        Floats c = problem.c();
        all_there.arrive_and_wait();
        problem.run(a.data(), b.data(), c.data(), true);
      });
    }
  };
  for (int repeat = 0; repeat < 20; ++repeat)
    EXPECT_EXIT((run(), std::_Exit(0)), testing::ExitedWithCode(0), "") << "repeat " << repeat;
}

TEST(GemmMemory, ACallOfAKnownShapeKeepsNothing) {
  for (const Problem& p : problems()) {
    const Floats a = p.a(), b = p.b();
    Floats c = p.c();
    p.run(a.data(), b.data(), c.data(), true);
    const int64_t before = live_allocations;
    for (int repeat = 0; repeat < 10; ++repeat) p.run(a.data(), b.data(), c.data(), true);
    EXPECT_EQ(live_allocations, before) << name(p);
  }
}

TEST(GemmMemory, ACallOf16BitMatricesOfAKnownShapeKeepsNothing) {
  constexpr int64_t m = 300, n = 65, k = 500;
  const std::vector<BFloat16> a(m * k, from_float<BFloat16>(1.0f)), b(k * n, from_float<BFloat16>(2.0f));
  std::vector<BFloat16> c(m * n);
  const auto run = [&] {
    gemm(Transpose::No, Transpose::No, m, n, k, a.data(), k, b.data(), n, c.data(), n, Addends<BFloat16>{});
  };
  run();
  const int64_t before = live_allocations;
  for (int repeat = 0; repeat < 10; ++repeat) run();
  EXPECT_EQ(live_allocations, before);
  EXPECT_EQ(to_float(c.back()), 1000);
}

TEST(GemmMemory, AllocationsAreCounted) {
  const int64_t live = live_allocations, all = all_allocations;
  { const Floats some(100); }
  EXPECT_EQ(live_allocations, live);
  EXPECT_GT(all_allocations, all);
}

TEST(GemmEdges, EmptySumsAreZeroAndEmptyMatricesAreNotTouched) {
  Floats c = {1, 2, 3, 4};
  gemm(Transpose::No, Transpose::No, 2, 2, 0, nullptr, 1, nullptr, 2, c.data(), 2, true);
  EXPECT_EQ(c, Floats({1, 2, 3, 4}));
  gemm(Transpose::No, Transpose::No, 1, 2, 0, nullptr, 1, nullptr, 2, c.data(), 2, false);
  EXPECT_EQ(c, Floats({0, 0, 3, 4}));
  gemm(Transpose::No, Transpose::No, 0, 2, 2, nullptr, 2, nullptr, 2, c.data(), 2, false);
  EXPECT_EQ(c, Floats({0, 0, 3, 4}));
}

TEST(GemmDescription, NamesLibraryVersionAndWhat16BitsDo) {
  EXPECT_THAT(gemm_description(), testing::MatchesRegex("(oneDNN|Eigen) [0-9.]+ \\(.+\\), .*fp16.*converted"));
}

Doubles naive_linear(const Doubles& x, const Doubles& weight, const Doubles& bias, size_t in) {
  const size_t out = weight.size() / in;
  Doubles y;
  for (size_t token = 0; token < x.size() / in; ++token) {
    for (size_t j = 0; j < out; ++j) {
      double sum = bias[j];
      for (size_t i = 0; i < in; ++i) sum += x[token * in + i] * weight[j * in + i];
      y.push_back(sum);
    }
  }
  return y;
}

class Linear : public testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {
 protected:
  const int64_t tokens = std::get<0>(GetParam()), in = std::get<1>(GetParam()), out = std::get<2>(GetParam());
  const Floats x = random_floats(tokens * in, 1), weight = random_floats(out * in, 2), bias = random_floats(out, 3),
               dy = random_floats(tokens * out, 4);
};

TEST_P(Linear, ForwardIsTheFormulaWithAndWithoutBias) {
  Floats y(dy.size());
  linear_forward(x.data(), weight.data(), bias.data(), nullptr, y.data(), tokens, in, out);
  expect_close(y, naive_linear(widen(x), widen(weight), widen(bias), static_cast<size_t>(in)), 2e-6, "y");
  linear_forward(x.data(), weight.data(), nullptr, nullptr, y.data(), tokens, in, out);
  expect_close(y, naive_linear(widen(x), widen(weight), Doubles(bias.size()), static_cast<size_t>(in)), 2e-6, "y");
}

TEST_P(Linear, GradientsAreDerivatives) {
  Floats dx(x.size()), dweight(weight.size()), dbias(bias.size());
  linear_backward_input(dy.data(), weight.data(), dx.data(), tokens, in, out, false);
  linear_backward_weight(dy.data(), x.data(), dweight.data(), dbias.data(), tokens, in, out, false);
  const Doubles wx = widen(x), wweight = widen(weight), wbias = widen(bias), weights = widen(dy);
  const size_t width = static_cast<size_t>(in);
  FiniteDifferences{[&](const Doubles& v) { return naive_linear(v, wweight, wbias, width); }, weights}.expect_gradient(
      dx, wx, 1e-5, "dx");
  FiniteDifferences{[&](const Doubles& v) { return naive_linear(wx, v, wbias, width); }, weights}.expect_gradient(
      dweight, wweight, 1e-5, "dweight");
  FiniteDifferences{[&](const Doubles& v) { return naive_linear(wx, wweight, v, width); }, weights}.expect_gradient(
      dbias, wbias, 1e-5, "dbias");
}

TEST_P(Linear, AccumulateAddsWhatOverwriteGives) {
  Floats dx(x.size()), dweight(weight.size()), dbias(bias.size());
  linear_backward_input(dy.data(), weight.data(), dx.data(), tokens, in, out, false);
  linear_backward_weight(dy.data(), x.data(), dweight.data(), dbias.data(), tokens, in, out, false);
  Floats added_dx = x, added_dweight = weight, added_dbias = bias, added_dweight_alone = weight;
  linear_backward_input(dy.data(), weight.data(), added_dx.data(), tokens, in, out, true);
  linear_backward_weight(dy.data(), x.data(), added_dweight.data(), added_dbias.data(), tokens, in, out, true);
  linear_backward_weight(dy.data(), x.data(), added_dweight_alone.data(), nullptr, tokens, in, out, true);
  const auto sum = [](const Floats& a, const Floats& b) {
    Doubles total = widen(a);
    for (size_t i = 0; i < b.size(); ++i) total[i] += double{b[i]};
    return total;
  };
  expect_close(added_dx, sum(x, dx), 2e-6, "dx");
  expect_close(added_dweight, sum(weight, dweight), 2e-6, "dweight");
  expect_close(added_dbias, sum(bias, dbias), 2e-6, "dbias");
  EXPECT_TRUE(same_bits(added_dweight, added_dweight_alone));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Linear,
                         testing::Values(std::tuple(1, 1, 1), std::tuple(1, 17, 3), std::tuple(5, 3, 17),
                                         std::tuple(5, 65, 64), std::tuple(33, 20, 65)));

}  // namespace

void* count_allocation(void* memory) {
  if (!memory) throw std::bad_alloc();
  ++live_allocations;
  ++all_allocations;
  return memory;
}
void free_counted(void* memory) {
  if (!memory) return;
  --live_allocations;
  std::free(memory);
}

}  // namespace shardpipe::kernels::test

// Replaced for the whole program: libraries' allocations count, too. (Not inlined, else GCC takes free() for a
// mismatch.)
[[gnu::noinline]] void* operator new(size_t bytes) {
  return shardpipe::kernels::test::count_allocation(std::malloc(bytes ? bytes : 1));
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  const size_t align = static_cast<size_t>(alignment);
  return shardpipe::kernels::test::count_allocation(std::aligned_alloc(align, (bytes + align - 1) / align * align));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { shardpipe::kernels::test::free_counted(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  shardpipe::kernels::test::free_counted(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  shardpipe::kernels::test::free_counted(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  shardpipe::kernels::test::free_counted(memory);
}
