// Matrix products through one library, chosen at build time and dispatched by it to this processor at run time.
// Row-major. One call uses one thread: parallelism comes from ranks. The bits of a result depend only on the shapes and
// the values, never on addresses or on what other threads do: layouts are compared by their bits. (The shapes include
// m: a row may have other bits in a matrix with another number of rows.) The first call of a shape in a thread prepares
// it and allocates. Later calls keep no memory, but the library may allocate and free small blocks within one.
#pragma once
#include <cstdint>
#include <string>

#include "tensor/dtype.h"

namespace shardpipe::kernels {

enum class Transpose : bool { No, Yes };

// c[m,n] = (accumulate ? c : 0) + op(a)[m,k] · op(b)[k,n], where op(x) is x or its transpose as stored.
// lda, ldb, ldc are row strides in elements of the matrices as stored.
void gemm(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
          const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate);

// The same of matrices stored in 16 bits, summed up in fp32. Where the processor multiplies bf16 itself, the library
// does that (such instructions take subnormal numbers for zero); else, and for fp16, panels of both matrices are
// converted to fp32 and multiplied as such: exact products, so that the sum alone is rounded.
template <HalfElement T>
void gemm(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
          const T* b, int64_t ldb, float* c, int64_t ldc, bool accumulate);

// What is added to a product before it is rounded to T; each may be null.
template <HalfElement T>
struct Addends {
  const T* row = nullptr;     // [n], to each row
  const T* matrix = nullptr;  // [m, n], its rows ldc apart; may be c
};
// c = ((op(a) · op(b) + addends.row) + addends.matrix), summed in fp32 and rounded once.
template <HalfElement T>
void gemm(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
          const T* b, int64_t ldb, T* c, int64_t ldc, Addends<T> addends);

// What a thread keeps, from its first product of 16-bit matrices on, for their panels.
uint64_t half_gemm_scratch_bytes();

// "oneDNN 2.6.3 (AVX2), bf16 and fp16 converted", "Eigen 3.4.0 …": what gemm uses here, for logs and tables.
std::string gemm_description();

}  // namespace shardpipe::kernels
