// What kernels store in 16 bits is what they give in fp32 for the same values, rounded once, bit for bit: so what their
// own tests show of fp32 holds here, too, within half a unit of the last place. Products of matrices have other sums
// than in fp32: gemm_half.test.cpp.
#include <kernels/cpu/activation.h>
#include <kernels/cpu/attention.h>
#include <kernels/cpu/cross_entropy.h>
#include <kernels/cpu/dropout.h>
#include <kernels/cpu/embedding.h>
#include <kernels/cpu/layernorm.h>
#include <kernels/cpu/linear.h>
#include <kernels/cpu/optimizer.h>
#include <kernels/cpu/rmsnorm.h>
#include <kernels/cpu/rotary.h>

#include <limits>

#include "kernels/check.h"

namespace shardpipe::kernels::test {
namespace {

template <class T>
class HalfKernels : public testing::Test {};
using Types = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfKernels, Types);

constexpr int64_t counts[] = {1, 3, 17, 65, 320};

// Random values with the uncomfortable ones among them.
template <HalfElement T>
Both<T> values_with_extremes(int64_t count, uint32_t seed) {
  Floats values = random_floats(count, seed, -6, 6);
  const float extremes[] = {NAN, INFINITY, -INFINITY, 6e4f, -6e4f, 0x1p-24f, -0.0f, 1e-40f, 3e38f};
  for (size_t i = 0; i < std::size(extremes) && i + 8 < values.size(); ++i) values[i + 8] = extremes[i];
  return Both<T>(values);
}

TYPED_TEST(HalfKernels, ActivationsRoundWhatFp32Gives) {
  on_every_target([] {
    for (const int64_t count : counts) {
      const auto x = values_with_extremes<TypeParam>(count, 1), up = random_both<TypeParam>(count, 2),
                 dy = random_both<TypeParam>(count, 3);
      Both<TypeParam> y(x.half.size()), dx = y, dup = y;
      gelu_forward(x.half.data(), y.half.data(), count);
      gelu_forward(x.full.data(), y.full.data(), count);
      EXPECT_TRUE(is_rounded(y));
      gelu_backward_input(dy.half.data(), x.half.data(), dx.half.data(), y.half.data(), count);
      gelu_backward_input(dy.full.data(), x.full.data(), dx.full.data(), y.full.data(), count);
      EXPECT_TRUE(is_rounded(dx) && is_rounded(y));
      swiglu_forward(x.half.data(), up.half.data(), y.half.data(), count);
      swiglu_forward(x.full.data(), up.full.data(), y.full.data(), count);
      EXPECT_TRUE(is_rounded(y));
      swiglu_backward_input(dy.half.data(), x.half.data(), up.half.data(), dx.half.data(), dup.half.data(),
                            y.half.data(), count);
      swiglu_backward_input(dy.full.data(), x.full.data(), up.full.data(), dx.full.data(), dup.full.data(),
                            y.full.data(), count);
      EXPECT_TRUE(is_rounded(dx) && is_rounded(dup) && is_rounded(y));
      y = dy;
      add(x.half.data(), y.half.data(), count);
      add(x.full.data(), y.full.data(), count);
      EXPECT_TRUE(is_rounded(y));
    }
  });
}

TYPED_TEST(HalfKernels, DropoutRoundsWhatFp32Gives) {
  on_every_target([] {
    const DropoutKey key{1, 2, 3, 4};
    for (const int64_t count : counts) {
      for (const float probability : {0.0f, 0.3f}) {
        const auto x = values_with_extremes<TypeParam>(2 * count, 1);
        Both<TypeParam> y(x.half.size());
        dropout_forward(x.half.data(), y.half.data(), key, 5, 2, count, probability);
        dropout_forward(x.full.data(), y.full.data(), key, 5, 2, count, probability);
        EXPECT_TRUE(is_rounded(y));
        dropout_backward_input(x.half.data(), y.half.data(), key, 5, 2, count, probability);
        EXPECT_TRUE(is_rounded(y)) << "backward is the same function";
      }
    }
  });
}

TYPED_TEST(HalfKernels, SumsInFp32AreNotRounded) {
  for (const int64_t count : counts) {
    const auto x = random_both<TypeParam>(count, 1);
    Floats expected = random_floats(count, 2), found = expected;
    add_to_sum(x.full.data(), expected.data(), count);
    add_to_sum(x.half.data(), found.data(), count);
    EXPECT_TRUE(same_bits(found, expected));
  }
}

TYPED_TEST(HalfKernels, NormsRoundWhatFp32Gives) {
  on_every_target([] {
    for (const int64_t width : counts) {
      const int64_t tokens = 5;
      const auto x = random_both<TypeParam>(tokens * width, 1, -2, 3), gamma = random_both<TypeParam>(width, 2),
                 beta = random_both<TypeParam>(width, 3), dy = random_both<TypeParam>(tokens * width, 4);
      Both<TypeParam> y(x.half.size());
      Floats mean(tokens), rstd(tokens), mean_half(tokens), rstd_half(tokens);
      const auto same_statistics = [&] { return same_bits(mean, mean_half) && same_bits(rstd, rstd_half); };
      Floats dgamma = gamma.full, dbeta = beta.full, dgamma_half = dgamma, dbeta_half = dbeta;
      const auto same_gradients = [&] { return same_bits(dgamma, dgamma_half) && same_bits(dbeta, dbeta_half); };

      layernorm_forward(x.full.data(), gamma.full.data(), beta.full.data(), y.full.data(), mean.data(), rstd.data(),
                        tokens, width, 1e-5f);
      layernorm_forward(x.half.data(), gamma.half.data(), beta.half.data(), y.half.data(), mean_half.data(),
                        rstd_half.data(), tokens, width, 1e-5f);
      EXPECT_TRUE(is_rounded(y) && same_statistics());
      for (const bool accumulate : {false, true}) {
        Both<TypeParam> dx = x;
        layernorm_backward_input(dy.full.data(), x.full.data(), gamma.full.data(), mean.data(), rstd.data(),
                                 dx.full.data(), tokens, width, accumulate);
        layernorm_backward_input(dy.half.data(), x.half.data(), gamma.half.data(), mean.data(), rstd.data(),
                                 dx.half.data(), tokens, width, accumulate);
        EXPECT_TRUE(is_rounded(dx));
        layernorm_backward_weight(dy.full.data(), x.full.data(), mean.data(), rstd.data(), dgamma.data(), dbeta.data(),
                                  tokens, width, accumulate);
        layernorm_backward_weight(dy.half.data(), x.half.data(), mean.data(), rstd.data(), dgamma_half.data(),
                                  dbeta_half.data(), tokens, width, accumulate);
        EXPECT_TRUE(same_gradients());
      }

      rmsnorm_forward(x.full.data(), gamma.full.data(), y.full.data(), rstd.data(), tokens, width, 1e-5f);
      rmsnorm_forward(x.half.data(), gamma.half.data(), y.half.data(), rstd_half.data(), tokens, width, 1e-5f);
      EXPECT_TRUE(is_rounded(y) && same_statistics());
      for (const bool accumulate : {false, true}) {
        Both<TypeParam> dx = x;
        rmsnorm_backward_input(dy.full.data(), x.full.data(), gamma.full.data(), rstd.data(), dx.full.data(), tokens,
                               width, accumulate);
        rmsnorm_backward_input(dy.half.data(), x.half.data(), gamma.half.data(), rstd.data(), dx.half.data(), tokens,
                               width, accumulate);
        EXPECT_TRUE(is_rounded(dx));
        rmsnorm_backward_weight(dy.full.data(), x.full.data(), rstd.data(), dgamma.data(), tokens, width, accumulate);
        rmsnorm_backward_weight(dy.half.data(), x.half.data(), rstd.data(), dgamma_half.data(), tokens, width,
                                accumulate);
        EXPECT_TRUE(same_gradients());
      }
    }
  });
}

TYPED_TEST(HalfKernels, RotaryRoundsWhatFp32Gives) {
  constexpr int64_t batch = 2, sequence = 5, heads = 3;
  for (const int64_t head_dim : {2, 20, 64}) {
    const int64_t stride = heads * head_dim + 4;
    Floats cosines(static_cast<size_t>(sequence * head_dim / 2)), sines = cosines;
    rotary_table(cosines.data(), sines.data(), sequence, head_dim, 10000);
    for (const bool forward : {true, false}) {
      auto x = random_both<TypeParam>(batch * sequence * stride, 1);
      const auto rotate = [&](auto* data) {
        (forward ? rotary_forward(data, stride, cosines.data(), sines.data(), batch, sequence, heads, head_dim)
                 : rotary_backward_input(data, stride, cosines.data(), sines.data(), batch, sequence, heads, head_dim));
      };
      rotate(x.half.data());
      rotate(x.full.data());
      EXPECT_TRUE(is_rounded(x));
    }
  }
}

TYPED_TEST(HalfKernels, EmbeddingRoundsItsSumAndItsGradientsAreNotRounded) {
  constexpr int64_t batch = 2, sequence = 3, maximum_sequence = 5, width = 17, vocabulary = 7;
  const std::vector<int32_t> tokens = {0, 6, 2, 2, 6, 2};
  const auto table = random_both<TypeParam>(vocabulary * width, 1),
             positions = random_both<TypeParam>(maximum_sequence * width, 2),
             dout = random_both<TypeParam>(batch * sequence * width, 3);
  Both<TypeParam> out(dout.half.size());
  embedding_forward(tokens.data(), table.full.data(), positions.full.data(), out.full.data(), batch, sequence, width,
                    vocabulary);
  embedding_forward(tokens.data(), table.half.data(), positions.half.data(), out.half.data(), batch, sequence, width,
                    vocabulary);
  EXPECT_TRUE(is_rounded(out));
  Floats dtable = table.full, dpositions = positions.full, dtable_half = dtable, dpositions_half = dpositions;
  for (const bool accumulate : {false, true}) {
    embedding_backward_weight(tokens.data(), dout.full.data(), dtable.data(), dpositions.data(), batch, sequence,
                              maximum_sequence, width, vocabulary, accumulate);
    embedding_backward_weight(tokens.data(), dout.half.data(), dtable_half.data(), dpositions_half.data(), batch,
                              sequence, maximum_sequence, width, vocabulary, accumulate);
    EXPECT_TRUE(same_bits(dtable, dtable_half) && same_bits(dpositions, dpositions_half));
  }
}

TYPED_TEST(HalfKernels, CrossEntropyRoundsItsScaledGradientOnce) {
  on_every_target([] {
    constexpr int64_t tokens = 4;
    for (const int64_t vocabulary : {1, 3, 17, 65, 256}) {
      const auto logits = random_both<TypeParam>(tokens * vocabulary, 1, -4, 4);
      const std::vector<int32_t> targets = {0, ignored_target, static_cast<int32_t>(vocabulary - 1), 0};
      Floats log_sum_exp(tokens), log_sum_exp_half(tokens);
      const LossSum sum =
          cross_entropy_forward(logits.full.data(), targets.data(), log_sum_exp.data(), tokens, vocabulary);
      const LossSum half =
          cross_entropy_forward(logits.half.data(), targets.data(), log_sum_exp_half.data(), tokens, vocabulary);
      EXPECT_EQ(half.loss, sum.loss);
      EXPECT_EQ(half.tokens, sum.tokens);
      EXPECT_TRUE(same_bits(log_sum_exp, log_sum_exp_half));

      Both<TypeParam> gradient = logits;
      Floats unscaled = logits.full;
      cross_entropy_backward_input(unscaled.data(), targets.data(), log_sum_exp.data(), tokens, vocabulary, 1);
      for (const float scale : {1.0f, 1024.0f}) {
        gradient = logits;
        cross_entropy_backward_input(gradient.full.data(), targets.data(), log_sum_exp.data(), tokens, vocabulary,
                                     scale);
        cross_entropy_backward_input(gradient.half.data(), targets.data(), log_sum_exp.data(), tokens, vocabulary,
                                     scale);
        EXPECT_TRUE(is_rounded(gradient));
        for (size_t i = 0; i < unscaled.size(); ++i) ASSERT_EQ(gradient.full[i], scale * unscaled[i]) << i;
      }
    }
  });
}

TEST(HalfCrossEntropy, ScaleKeepsWhatFp16WouldLose) {
  const std::vector<Float16> logits = {from_float<Float16>(20.0f), from_float<Float16>(0.0f)};
  const int32_t target = 0;
  float log_sum_exp = 0;
  cross_entropy_forward(logits.data(), &target, &log_sum_exp, 1, 2);
  std::vector<Float16> lost = logits, kept = logits;
  cross_entropy_backward_input(lost.data(), &target, &log_sum_exp, 1, 2, 1);
  cross_entropy_backward_input(kept.data(), &target, &log_sum_exp, 1, 2, 65536);
  EXPECT_EQ(to_float(lost[1]), 0);  // e^-20 is a thirtieth of the smallest fp16
  EXPECT_NEAR(to_float(kept[1]) / 65536, std::exp(-20.0), 1e-3 * std::exp(-20.0));
}

TYPED_TEST(HalfKernels, CollectivesSumInFp32InRankOrder) {
  on_every_target([] {
    for (const int64_t count : counts) {
      const auto a = random_both<TypeParam>(count, 1), b = random_both<TypeParam>(count, 2),
                 c = random_both<TypeParam>(count, 3);
      const TypeParam* half[] = {a.half.data(), b.half.data(), c.half.data()};
      const float* full[] = {a.full.data(), b.full.data(), c.full.data()};
      Floats found = random_floats(count, 4), expected = found;
      for (const bool accumulate : {true, false}) {
        sum_in_order(half, 3, found.data(), count, accumulate);
        sum_in_order(full, 3, expected.data(), count, accumulate);
        EXPECT_TRUE(same_bits(found, expected));
      }
    }
  });
}

TYPED_TEST(HalfKernels, OneElementThatIsNotFiniteIsFound) {
  on_every_target([] {
    for (const int64_t count : {1, 17, 5000}) {
      auto x = random_both<TypeParam>(count, 1);
      x.half[0] = from_float<TypeParam>(std::same_as<TypeParam, BFloat16> ? 3e38f : 65504.0f);
      EXPECT_TRUE(all_finite(x.half.data(), count));
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        x.half.back() = from_float<TypeParam>(bad);
        EXPECT_FALSE(all_finite(x.half.data(), count));
      }
    }
  });
}

// [rows, width] in [rows, width + gap]
template <class T>
struct Strided {
  int64_t rows, width, stride;
  std::vector<T> memory;
  Strided(const std::vector<T>& packed, int64_t of_rows, int64_t gap)
      : rows(of_rows),
        width(static_cast<int64_t>(packed.size()) / rows),
        stride(width + gap),
        memory(static_cast<size_t>(rows * stride)) {
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(packed.data() + row * width, width, memory.data() + row * stride);
    }
  }
  std::vector<T> packed() const {
    std::vector<T> values;
    for (int64_t row = 0; row < rows; ++row) {
      values.insert(values.end(), memory.data() + row * stride, memory.data() + row * stride + width);
    }
    return values;
  }
};

template <class T>
struct AttentionResults {
  std::vector<T> out, dq, dk, dv;
  Floats log_sum_exp;
};

// `out` of backward is given, so that it is the same for both types.
template <class T>
AttentionResults<T> run_attention(const AttentionShape& s, const std::vector<T>& q, const std::vector<T>& k,
                                  const std::vector<T>& v, const std::vector<T>& dout, const std::vector<T>& out,
                                  int64_t gap) {
  const int64_t rows = s.batch * s.sequence;
  Strided<T> q_in(q, rows, gap), k_in(k, rows, gap), v_in(v, rows, gap), dout_in(dout, rows, gap), out_in(out, rows, 0);
  Strided<T> found = out_in, dq = q_in, dk = k_in, dv = v_in;
  AttentionResults<T> results;
  results.log_sum_exp.resize(static_cast<size_t>(rows * s.heads));
  std::vector<std::byte> workspace(attention_workspace_bytes(s, dtype_of<T>));
  attention_forward<T>(s, {q_in.memory.data(), q_in.stride}, {k_in.memory.data(), k_in.stride},
                       {v_in.memory.data(), v_in.stride}, {found.memory.data(), found.stride},
                       results.log_sum_exp.data(), workspace.data());
  attention_backward_input<T>(
      s, {dout_in.memory.data(), dout_in.stride}, {q_in.memory.data(), q_in.stride}, {k_in.memory.data(), k_in.stride},
      {v_in.memory.data(), v_in.stride}, {out_in.memory.data(), out_in.stride}, results.log_sum_exp.data(),
      {dq.memory.data(), dq.stride}, {dk.memory.data(), dk.stride}, {dv.memory.data(), dv.stride}, workspace.data());
  results.out = found.packed();
  results.dq = dq.packed();
  results.dk = dk.packed();
  results.dv = dv.packed();
  return results;
}

TYPED_TEST(HalfKernels, AttentionRoundsWhatFp32Gives) {
  on_every_target([] {
    for (const AttentionShape& s : {AttentionShape{1, 1, 1, 1, 1}, AttentionShape{2, 63, 2, 1, 8},
                                    AttentionShape{1, 65, 4, 2, 20}, AttentionShape{1, 130, 2, 2, 16}}) {
      const int64_t rows = s.batch * s.sequence, q_width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim;
      const auto q = random_both<TypeParam>(rows * q_width, 1, -2, 2), k = random_both<TypeParam>(rows * kv_width, 2),
                 v = random_both<TypeParam>(rows * kv_width, 3), dout = random_both<TypeParam>(rows * q_width, 4),
                 out = random_both<TypeParam>(rows * q_width, 5);
      const auto full = run_attention(s, q.full, k.full, v.full, dout.full, out.full, 0);
      for (const int64_t gap : {0, 7}) {
        const auto half = run_attention(s, q.half, k.half, v.half, dout.half, out.half, gap);
        EXPECT_TRUE(is_rounded(half.out, full.out));
        EXPECT_TRUE(same_bits(half.log_sum_exp, full.log_sum_exp));
        EXPECT_TRUE(is_rounded(half.dq, full.dq) && is_rounded(half.dk, full.dk) && is_rounded(half.dv, full.dv));
      }
    }
  });
}

// DeepSpeed issue 1800: where the gradients of many micro-batches are summed in bf16, later ones vanish.
TYPED_TEST(HalfKernels, AThousandEqualContributionsAddUpExactlyInFp32) {
  constexpr int64_t contributions = 1024, width = 17;
  const auto gradient = random_both<TypeParam>(width, 1, 0.1f, 1);
  Floats sums(width), weight_sums(width), bias_sums(1);
  auto in_16_bits = gradient;
  std::vector<TypeParam> one = {from_float<TypeParam>(1.0f)};
  for (int64_t i = 0; i < contributions; ++i) {
    add_to_sum(gradient.half.data(), sums.data(), width);
    linear_backward_weight(one.data(), gradient.half.data(), weight_sums.data(), bias_sums.data(), 1, width, 1, true);
    if (i > 0) add(gradient.half.data(), in_16_bits.half.data(), width);
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    const float exact = contributions * gradient.full[i];
    EXPECT_EQ(sums[i], exact);
    EXPECT_EQ(weight_sums[i], exact);
    if constexpr (std::same_as<TypeParam, BFloat16>) {
      EXPECT_LT(to_float(in_16_bits.half[i]), exact * 0.6f);
    }
  }
  EXPECT_EQ(bias_sums[0], contributions);
}

}  // namespace
}  // namespace shardpipe::kernels::test
