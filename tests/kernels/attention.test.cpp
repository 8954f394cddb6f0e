#include <kernels/cpu/attention.h>

#include "kernels/check.h"

namespace shardpipe::kernels::test {
namespace {

size_t at(const AttentionShape& s, int64_t heads, int64_t batch, int64_t token, int64_t head) {
  return static_cast<size_t>(((batch * s.sequence + token) * heads + head) * s.head_dim);
}

double dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// The probabilities of one query, [query + 1], and its log-sum-exp.
Doubles naive_probabilities(const AttentionShape& s, const Doubles& q, const Doubles& k, int64_t batch, int64_t head,
                            int64_t query, double* log_sum_exp = nullptr) {
  Doubles p;
  double sum = 0;
  for (int64_t key = 0; key <= query; ++key) {
    const double score = dot(&q[at(s, s.heads, batch, query, head)],
                             &k[at(s, s.kv_heads, batch, key, head / (s.heads / s.kv_heads))], s.head_dim);
    p.push_back(std::exp(score / std::sqrt(static_cast<double>(s.head_dim))));
    sum += p.back();
  }
  for (double& value : p) value /= sum;
  if (log_sum_exp) *log_sum_exp = std::log(sum);
  return p;
}

Doubles naive_attention(const AttentionShape& s, const Doubles& q, const Doubles& k, const Doubles& v,
                        Doubles* log_sum_exp = nullptr) {
  Doubles out(q.size());
  for (int64_t batch = 0; batch < s.batch; ++batch) {
    for (int64_t head = 0; head < s.heads; ++head) {
      for (int64_t query = 0; query < s.sequence; ++query) {
        double log_sum = 0;
        const Doubles p = naive_probabilities(s, q, k, batch, head, query, &log_sum);
        if (log_sum_exp) log_sum_exp->push_back(log_sum);
        for (int64_t key = 0; key <= query; ++key) {
          for (int64_t i = 0; i < s.head_dim; ++i) {
            out[at(s, s.heads, batch, query, head) + static_cast<size_t>(i)] +=
                p[static_cast<size_t>(key)] *
                v[at(s, s.kv_heads, batch, key, head / (s.heads / s.kv_heads)) + static_cast<size_t>(i)];
          }
        }
      }
    }
  }
  return out;
}

// One tensor [batch, sequence, heads, head_dim], with rows `stride` apart in memory and a guard value between them.
struct Strided {
  int64_t rows, width, stride;
  Floats memory;

  static constexpr float guard = 12345;
  Strided(int64_t rows_, int64_t width_, int64_t gap)
      : rows(rows_), width(width_), stride(width_ + gap), memory(static_cast<size_t>(rows * stride), guard) {}
  Strided(const Floats& packed, int64_t rows_, int64_t gap)
      : Strided(rows_, static_cast<int64_t>(packed.size()) / rows_, gap) {
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(packed.data() + row * width, width, memory.data() + row * stride);
    }
  }
  HeadsIn<float> in() const { return {memory.data(), stride}; }
  HeadsOut<float> out() { return {memory.data(), stride}; }
  Floats packed() const {
    Floats values;
    for (int64_t row = 0; row < rows; ++row) {
      values.insert(values.end(), memory.data() + row * stride, memory.data() + row * stride + width);
      for (int64_t i = width; i < stride; ++i) EXPECT_EQ(memory[static_cast<size_t>(row * stride + i)], guard);
    }
    return values;
  }
};

struct Results {
  Floats out, log_sum_exp, dq, dk, dv;
};

Results run(const AttentionShape& s, const Floats& q, const Floats& k, const Floats& v, const Floats& dout,
            int64_t gap) {
  const int64_t rows = s.batch * s.sequence;
  const Strided q_in(q, rows, gap), k_in(k, rows, gap), v_in(v, rows, gap), dout_in(dout, rows, gap);
  Strided out(rows, s.heads * s.head_dim, gap), dq = out, dk(rows, s.kv_heads * s.head_dim, gap), dv = dk;
  Results result;
  result.log_sum_exp.resize(static_cast<size_t>(rows * s.heads));
  std::vector<std::byte> workspace(attention_workspace_bytes(s, DType::Float32));
  attention_forward(s, q_in.in(), k_in.in(), v_in.in(), out.out(), result.log_sum_exp.data(), workspace.data());
  attention_backward_input(s, dout_in.in(), q_in.in(), k_in.in(), v_in.in(), out.in(), result.log_sum_exp.data(),
                           dq.out(), dk.out(), dv.out(), workspace.data());
  result.out = out.packed();
  result.dq = dq.packed();
  result.dk = dk.packed();
  result.dv = dv.packed();
  return result;
}

class Attention : public testing::TestWithParam<AttentionShape> {
 protected:
  const AttentionShape shape = GetParam();
  const int64_t rows = shape.batch * shape.sequence;
  const Floats q = random_floats(rows * shape.heads * shape.head_dim, 1, -2, 2),
               k = random_floats(rows * shape.kv_heads * shape.head_dim, 2, -2, 2),
               v = random_floats(rows * shape.kv_heads * shape.head_dim, 3),
               dout = random_floats(rows * shape.heads * shape.head_dim, 4);
};

TEST_P(Attention, ForwardIsTheFormula) {
  const Results found = run(shape, q, k, v, dout, 3);
  Doubles log_sum_exp;
  const Doubles out = naive_attention(shape, widen(q), widen(k), widen(v), &log_sum_exp);
  expect_close(found.out, out, 1e-5, "out");
  expect_close(found.log_sum_exp, log_sum_exp, 1e-5, "log_sum_exp");
}

TEST_P(Attention, GradientsAreDerivatives) {
  const Results found = run(shape, q, k, v, dout, 0);
  const Doubles wq = widen(q), wk = widen(k), wv = widen(v), weights = widen(dout);
  FiniteDifferences{[&](const Doubles& x) { return naive_attention(shape, x, wk, wv); }, weights}.expect_gradient(
      found.dq, wq, 1e-4, "dq", 8);
  FiniteDifferences{[&](const Doubles& x) { return naive_attention(shape, wq, x, wv); }, weights}.expect_gradient(
      found.dk, wk, 1e-4, "dk", 8);
  FiniteDifferences{[&](const Doubles& x) { return naive_attention(shape, wq, wk, x); }, weights}.expect_gradient(
      found.dv, wv, 1e-4, "dv", 8);
}

// Every element, where finite differences look at a few only.
TEST_P(Attention, GradientsAreTheFormulaInDouble) {
  const Results found = run(shape, q, k, v, dout, 5);
  const Doubles wq = widen(q), wk = widen(k), wv = widen(v), wdout = widen(dout);
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  Doubles dq(q.size()), dk(k.size()), dv(v.size());
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t kv_head = head / (shape.heads / shape.kv_heads);
      for (int64_t query = 0; query < shape.sequence; ++query) {
        const Doubles p = naive_probabilities(shape, wq, wk, batch, head, query);
        const size_t row = at(shape, shape.heads, batch, query, head);
        Doubles dp;
        double sum = 0;
        for (int64_t key = 0; key <= query; ++key) {
          dp.push_back(dot(&wdout[row], &wv[at(shape, shape.kv_heads, batch, key, kv_head)], shape.head_dim));
          sum += dp.back() * p[static_cast<size_t>(key)];
        }
        for (int64_t key = 0; key <= query; ++key) {
          const size_t column = at(shape, shape.kv_heads, batch, key, kv_head);
          const double probability = p[static_cast<size_t>(key)];
          const double ds = probability * (dp[static_cast<size_t>(key)] - sum) * scale;
          for (size_t i = 0; i < static_cast<size_t>(shape.head_dim); ++i) {
            dv[column + i] += probability * wdout[row + i];
            dq[row + i] += ds * wk[column + i];
            dk[column + i] += ds * wq[row + i];
          }
        }
      }
    }
  }
  expect_close(found.dq, dq, 1e-5, "dq");
  expect_close(found.dk, dk, 1e-5, "dk");
  expect_close(found.dv, dv, 1e-5, "dv");
}

TEST_P(Attention, StrideDoesNotChangeBits) {
  const Results packed = run(shape, q, k, v, dout, 0), apart = run(shape, q, k, v, dout, 7);
  EXPECT_TRUE(same_bits(packed.out, apart.out));
  EXPECT_TRUE(same_bits(packed.log_sum_exp, apart.log_sum_exp));
  EXPECT_TRUE(same_bits(packed.dq, apart.dq));
  EXPECT_TRUE(same_bits(packed.dk, apart.dk));
  EXPECT_TRUE(same_bits(packed.dv, apart.dv));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         testing::Values(AttentionShape{1, 1, 1, 1, 1}, AttentionShape{2, 2, 2, 1, 8},
                                         AttentionShape{1, 63, 2, 2, 20}, AttentionShape{2, 64, 1, 1, 8},
                                         AttentionShape{1, 65, 4, 1, 20}, AttentionShape{1, 65, 1, 1, 1},
                                         AttentionShape{2, 65, 2, 1, 17}, AttentionShape{1, 130, 2, 1, 64},
                                         AttentionShape{1, 130, 4, 2, 3}),
                         [](const auto& instance) {
                           const AttentionShape& s = instance.param;
                           return "batch" + std::to_string(s.batch) + "_sequence" + std::to_string(s.sequence) +
                                  "_heads" + std::to_string(s.heads) + "_kv" + std::to_string(s.kv_heads) + "_dim" +
                                  std::to_string(s.head_dim);
                         });

TEST(AttentionBatch, RowsDoNotDependOnTheirNeighbours) {
  const AttentionShape two{2, 70, 2, 1, 16}, one{1, 70, 2, 1, 16};
  const auto heads = [](int64_t count, uint32_t seed) { return random_floats(2 * 70 * count * 16, seed); };
  const Floats q = heads(2, 1), k = heads(1, 2), v = heads(1, 3), dout = heads(2, 4);
  const auto second = [](const Floats& x) { return Floats(x.begin() + static_cast<int64_t>(x.size()) / 2, x.end()); };
  const Results both = run(two, q, k, v, dout, 0);
  const Results alone = run(one, second(q), second(k), second(v), second(dout), 0);
  EXPECT_TRUE(same_bits(second(both.out), alone.out));
  EXPECT_TRUE(same_bits(second(both.dq), alone.dq));
  EXPECT_TRUE(same_bits(second(both.dk), alone.dk));
  EXPECT_TRUE(same_bits(second(both.dv), alone.dv));
}

TEST(AttentionWorkspace, DoesNotGrowWithTheBatchNorWithTheSquareOfTheSequence) {
  EXPECT_EQ(attention_workspace_bytes({1, 256, 5, 5, 64}, DType::Float32),
            attention_workspace_bytes({64, 256, 5, 5, 64}, DType::Float32));
  EXPECT_LE(attention_workspace_bytes({1, 4096, 5, 5, 64}, DType::Float32), 120'000u + sizeof(float) * 4096);
}

TEST(AttentionExtremes, LargeScoresDoNotOverflow) {
  const AttentionShape shape{1, 70, 1, 1, 8};
  const Floats q = random_floats(70 * 8, 1, -300, 300), k = random_floats(70 * 8, 2, -300, 300),
               v = random_floats(70 * 8, 3);
  const Results found = run(shape, q, k, v, v, 0);
  for (const Floats* values : {&found.out, &found.log_sum_exp, &found.dq, &found.dk, &found.dv}) {
    for (const float value : *values) ASSERT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace shardpipe::kernels::test
