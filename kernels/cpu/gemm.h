// Matrix products through one library, chosen at build time and dispatched by it to this processor at run time.
// Row-major, fp32. One call uses one thread: parallelism comes from ranks. The bits of a result depend only on the
// shapes and the values, never on addresses or on what other threads do: layouts are compared by their bits. (The
// shapes include m: a row may have other bits in a matrix with another number of rows.) The first call of a shape in a
// thread prepares it and allocates. Later calls keep no memory, but the library may allocate and free small blocks
// within one.
#pragma once
#include <cstdint>
#include <string>

namespace shardpipe::kernels {

enum class Transpose : bool { No, Yes };

// c[m,n] = (accumulate ? c : 0) + op(a)[m,k] · op(b)[k,n], where op(x) is x or its transpose as stored.
// lda, ldb, ldc are row strides in elements of the matrices as stored.
void gemm(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
          const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate);

// "oneDNN 2.6.3 (AVX2)", "Eigen 3.4.0": what gemm uses here, for logs and tables.
std::string gemm_description();

}  // namespace shardpipe::kernels
