// What a library for matrix products may offer beside fp32: implemented by the one that is built in.
#pragma once
#include "kernels/cpu/gemm.h"

namespace shardpipe::kernels {

// gemm by the processor's own products of bf16. Returns false, with c untouched, where it or the library has none that
// is faster than converting.
bool gemm_native_bfloat16(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                          const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb, float* c, int64_t ldc,
                          bool accumulate);

}  // namespace shardpipe::kernels
