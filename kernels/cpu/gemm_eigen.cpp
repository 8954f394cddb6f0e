// The fallback where oneDNN is missing. Eigen vectorises for the instruction set of the build, not of this processor.
#include <fmt/format.h>

#include <Eigen/Core>

#include "kernels/cpu/gemm_bfloat16.h"

namespace shardpipe::kernels {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstView = Eigen::Map<const Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
using View = Eigen::Map<Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class A, class B>
static void multiply(const A& a, const B& b, View c) {
  c.noalias() += a * b;
}

void gemm(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
          const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  if (m == 0 || n == 0) return;
  View result(c, m, n, Eigen::OuterStride<>(ldc));
  if (!accumulate) result.setZero();
  if (k == 0) return;
  const bool ta = transpose_a == Transpose::Yes;
  const bool tb = transpose_b == Transpose::Yes;
  const ConstView left(a, ta ? k : m, ta ? m : k, Eigen::OuterStride<>(lda));
  const ConstView right(b, tb ? n : k, tb ? k : n, Eigen::OuterStride<>(ldb));
  if (ta && tb) {
    multiply(left.transpose(), right.transpose(), result);
  } else if (ta) {
    multiply(left.transpose(), right, result);
  } else if (tb) {
    multiply(left, right.transpose(), result);
  } else {
    multiply(left, right, result);
  }
}

bool gemm_native_bfloat16(Transpose, Transpose, int64_t, int64_t, int64_t, const BFloat16*, int64_t, const BFloat16*,
                          int64_t, float*, int64_t, bool) {
  return false;
}

std::string gemm_description() {
  return fmt::format("Eigen {}.{}.{} ({}), bf16 and fp16 converted", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION,
                     EIGEN_MINOR_VERSION, Eigen::SimdInstructionSetsInUse());
}

}  // namespace shardpipe::kernels
