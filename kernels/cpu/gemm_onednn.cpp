#include <dnnl.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <dnnl.hpp>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "kernels/cpu/gemm_bfloat16.h"

namespace shardpipe::kernels {
namespace {

struct Shape {
  DType type;  // of a and b; c is fp32
  Transpose transpose_a, transpose_b;
  int64_t m, n, k, lda, ldb, ldc;
  bool accumulate;
  bool operator==(const Shape&) const = default;
};

struct ShapeHash {
  size_t operator()(const Shape& s) const {
    uint64_t hash = uint64_t{s.transpose_a == Transpose::Yes} | uint64_t{s.transpose_b == Transpose::Yes} << 1 |
                    uint64_t{s.accumulate} << 2 | static_cast<uint64_t>(s.type) << 3;
    for (const int64_t value : {s.m, s.n, s.k, s.lda, s.ldb, s.ldc}) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// The library packs matrices into memory that it frees after each product. What is made for good between two products
// comes to lie in such a hole, the next packing finds it too small, and the heap grows by another for each shape.
void give_back_holes_of_the_heap() {
#ifdef __GLIBC__
  // Where another allocator stands in for the C library's (a sanitizer's, a preloaded one), the first trim sets up that
  // of the C library, which then takes for granted that no other thread does so.
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  malloc_trim(0);
#endif
}

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

// A primitive for one shape, with memory objects that are pointed at each call's matrices.
struct Product {
  dnnl::matmul primitive;
  dnnl::memory a, b, c, scratch;
  std::array<dnnl_exec_arg_t, 4> arguments;
};

// What one thread keeps between calls. It is the one exception to "no global state": making a primitive takes
// milliseconds the first time, a memory object may not be shared by two threads that point it at different matrices,
// and handing a cache through every linear layer would put this library's needs into every signature. Nothing that can
// be observed but time depends on it.
class ProductsOfThread {
 public:
  ProductsOfThread() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    // Per calling thread: parallelism comes from ranks, and a sum split by threads would have other bits.
    omp_set_num_threads(1);
  }

  // False where the library has no product for this type that is faster than converting.
  bool run(const Shape& shape, const void* a, const void* b, float* c) {
    auto found = products_.find(shape);
    if (found == products_.end()) {
      found = products_.emplace(shape, make(shape)).first;
      give_back_holes_of_the_heap();
    }
    if (!found->second) return false;
    Product& product = *found->second;
    // oneDNN reads a and b only, but has one memory type for both
    product.a.set_data_handle(const_cast<void*>(a));
    product.b.set_data_handle(const_cast<void*>(b));
    product.c.set_data_handle(c);
    product.scratch.set_data_handle(scratch_.data());
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(product.primitive.get(), stream_.get(), static_cast<int>(product.arguments.size()),
                               product.arguments.data()),
        "oneDNN could not run a matrix product");
    stream_.wait();
    return true;
  }

 private:
  std::optional<Product> make(const Shape& s) {
    using Strides = dnnl::memory::dims;
    using Type = dnnl::memory::data_type;
    const Type type = s.type == DType::BFloat16 ? Type::bf16 : Type::f32;
    const dnnl::memory::desc a({s.m, s.k}, type,
                               s.transpose_a == Transpose::Yes ? Strides{1, s.lda} : Strides{s.lda, 1});
    const dnnl::memory::desc b({s.k, s.n}, type,
                               s.transpose_b == Transpose::Yes ? Strides{1, s.ldb} : Strides{s.ldb, 1});
    const dnnl::memory::desc c({s.m, s.n}, Type::f32, Strides{s.ldc, 1});

    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (s.accumulate) {
      dnnl::post_ops add_to_c;
      add_to_c.append_sum(1.0f);
      attributes.set_post_ops(add_to_c);
    }
    const bool may_fail = s.type != DType::Float32;
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes, engine_, may_fail);
    // the library's reference loops are there to be right, not fast
    if (may_fail && (!description || std::string_view(description.impl_info_str()).starts_with("ref"))) return {};

    Product product{.primitive = dnnl::matmul(description),
                    .a = dnnl::memory(a, engine_, nullptr),
                    .b = dnnl::memory(b, engine_, nullptr),
                    .c = dnnl::memory(c, engine_, nullptr),
                    .scratch = dnnl::memory(description.scratchpad_desc(), engine_, nullptr),
                    .arguments = {}};
    product.arguments = {{{DNNL_ARG_SRC, product.a.get()},
                          {DNNL_ARG_WEIGHTS, product.b.get()},
                          {DNNL_ARG_DST, product.c.get()},
                          {DNNL_ARG_SCRATCHPAD, product.scratch.get()}}};
    // grows only here, on a miss
    const size_t lines = (description.scratchpad_desc().get_size() + sizeof(CacheLine) - 1) / sizeof(CacheLine);
    scratch_.resize(std::max(scratch_.size(), lines));
    return product;
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unordered_map<Shape, std::optional<Product>, ShapeHash> products_;  // none: not offered
  std::vector<CacheLine> scratch_;
};

ProductsOfThread& products_of_thread() {
  thread_local ProductsOfThread products;
  return products;
}

// Before these instructions the library emulates them, at a cost like that of converting.
bool has_bfloat16_products() {
  static const bool has = [] {
    const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
  }();
  return has;
}

}  // namespace

void gemm(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
          const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t row = 0; !accumulate && row < m; ++row) std::fill_n(c + row * ldc, n, 0.0f);
    return;
  }
  products_of_thread().run({DType::Float32, transpose_a, transpose_b, m, n, k, lda, ldb, ldc, accumulate}, a, b, c);
}

bool gemm_native_bfloat16(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                          const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb, float* c, int64_t ldc,
                          bool accumulate) {
  if (!has_bfloat16_products() || m == 0 || n == 0 || k == 0) return false;
  return products_of_thread().run({DType::BFloat16, transpose_a, transpose_b, m, n, k, lda, ldb, ldc, accumulate}, a, b,
                                  c);
}

std::string gemm_description() {
  const auto instructions = [] {
    switch (dnnl::get_effective_cpu_isa()) {
      case dnnl::cpu_isa::avx2:
        return "AVX2";
      case dnnl::cpu_isa::avx2_vnni:
        return "AVX2 with VNNI";
      case dnnl::cpu_isa::avx512_core:
        return "AVX-512";
      case dnnl::cpu_isa::avx512_core_vnni:
        return "AVX-512 with VNNI";
      case dnnl::cpu_isa::avx512_core_bf16:
        return "AVX-512 with bf16";
      case dnnl::cpu_isa::avx512_core_amx:
        return "AVX-512 with AMX";
      default:
        return "below AVX2";
    }
  };
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{} ({}), {}", version->major, version->minor, version->patch, instructions(),
                     has_bfloat16_products() ? "bf16 multiplied as such, fp16 converted" : "bf16 and fp16 converted");
}

}  // namespace shardpipe::kernels
