// Eigen's product behind the C interface of BLAS's row-major sgemm, compiled once for any processor, once for this one.
#include <Eigen/Core>

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

extern "C" __attribute__((visibility("default"))) void eigen_sgemm(bool transpose_a, bool transpose_b, long m, long n,
                                                                   long k, const float* a, const float* b, float* c,
                                                                   bool accumulate) {
  const Eigen::Map<const Matrix> left(a, transpose_a ? k : m, transpose_a ? m : k);
  const Eigen::Map<const Matrix> right(b, transpose_b ? n : k, transpose_b ? k : n);
  Eigen::Map<Matrix> result(c, m, n);
  if (!accumulate) result.setZero();
  if (transpose_a) {
    result.noalias() += left.transpose() * right;
  } else if (transpose_b) {
    result.noalias() += left * right.transpose();
  } else {
    result.noalias() += left * right;
  }
}

extern "C" __attribute__((visibility("default"))) const char* eigen_instructions() {
  return Eigen::SimdInstructionSetsInUse();
}
