// Products of 16-bit matrices: c is cut into tiles, and the depth into runs; a tile of c is the sum over runs of the
// product of two panels, which are converted to fp32 unless the library multiplies bf16 itself. A panel serves until
// another takes its place. The cuts depend on the shape alone, and so do the bits.
#include <algorithm>
#include <concepts>
#include <memory>

#include "kernels/cpu/gemm_bfloat16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_half.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

// to [rows, columns] = from; each has its own stride between rows
template <Element T>
void widen_panel(const T* from, int64_t stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
  const hn::ScalableTag<float> d;
  for (int64_t row = 0; row < rows; ++row) {
    for_each_vector(d, columns, [&](int64_t i, auto lanes) HWY_ATTR {
      lanes.store(lanes.load(d, from + row * stride + i), d, to + row * to_stride + i);
    });
  }
}

// to [rows, columns] = (sums + addend_row) + addend_matrix; to's rows and addend_matrix's lie `stride` apart
template <Element T>
void narrow_tile(const float* sums, int64_t sums_stride, const T* addend_row, const T* addend_matrix, T* to,
                 int64_t stride, int64_t rows, int64_t columns) {
  const hn::ScalableTag<float> d;
  for (int64_t row = 0; row < rows; ++row) {
    for_each_vector(d, columns, [&](int64_t i, auto lanes) HWY_ATTR {
      auto sum = lanes.load(d, sums + row * sums_stride + i);
      if (addend_row) sum = hn::Add(sum, lanes.load(d, addend_row + i));
      if (addend_matrix) sum = hn::Add(sum, lanes.load(d, addend_matrix + row * stride + i));
      lanes.store(sum, d, to + row * stride + i);
    });
  }
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

SHARDPIPE_EXPORT(widen_panel);
SHARDPIPE_EXPORT(narrow_tile);

namespace {

// The largest cuts: three panels together fit a second-level cache of 1 MiB.
constexpr int64_t tile_rows = 128, tile_columns = 256, tile_depth = 384;

// Between rows of a panel, in floats: rows that lie a multiple of 1 KiB apart share a few sets of the nearest cache.
constexpr int64_t padding = 16;
int64_t padded(int64_t columns) { return columns + padding; }

struct alignas(64) Scratch {
  float a[(tile_rows + padding) * (tile_depth + padding)];
  float b[(tile_depth + padding) * (tile_columns + padding)];
  float c[tile_rows * (tile_columns + padding)];
};

// Like the library's own scratch, an exception to "no global state": nothing that can be observed but time depends on
// what it holds.
Scratch& scratch_of_thread() {
  thread_local const auto scratch = std::make_unique_for_overwrite<Scratch>();
  return *scratch;
}

// [0, extent) in pieces of one size, but for the last, that are at most `largest` long.
int64_t piece_size(int64_t extent, int64_t largest) {
  const int64_t pieces = std::max<int64_t>((extent + largest - 1) / largest, 1);
  constexpr int64_t multiple = 16;  // of every vector
  return std::min(((extent + pieces - 1) / pieces + multiple - 1) / multiple * multiple, largest);
}

// One of the two factors, op(matrix), by its own rows and columns.
template <class T>
struct Factor {
  Transpose transpose;
  const T* data;  // the matrix as stored
  int64_t stride;

  const T* at(int64_t row, int64_t column) const {
    return transpose == Transpose::Yes ? data + column * stride + row : data + row * stride + column;
  }
  Factor from(int64_t row, int64_t column) const { return {transpose, at(row, column), stride}; }
};

// The part of a factor that is converted at present.
template <class T>
struct Panel {
  float* memory;
  const T* source = nullptr;

  Factor<float> convert(const Factor<T>& of, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    const bool transposed = of.transpose == Transpose::Yes;
    const int64_t stored_rows = transposed ? columns : rows, stored_columns = transposed ? rows : columns;
    if (source != of.at(row, column)) {
      source = of.at(row, column);
      SHARDPIPE_DISPATCH(widen_panel, T)
      (source, of.stride, stored_rows, stored_columns, memory, padded(stored_columns));
    }
    return {of.transpose, memory, padded(stored_columns)};
  }
};

template <class T>
bool multiply_native(const Factor<T>& a, const Factor<T>& b, int64_t m, int64_t n, int64_t k, float* c, int64_t ldc,
                     bool accumulate) {
  if constexpr (std::same_as<T, BFloat16>) {
    return gemm_native_bfloat16(a.transpose, b.transpose, m, n, k, a.data, a.stride, b.data, b.stride, c, ldc,
                                accumulate);
  } else {
    return false;
  }
}

// Out: float, summed in c itself, or T, summed in a scratch tile.
template <class T, class Out>
void multiply(const Factor<T>& a, const Factor<T>& b, int64_t m, int64_t n, int64_t k, Out* c, int64_t ldc,
              bool accumulate, const Addends<T>& addends) {
  constexpr bool in_place = std::same_as<Out, float>;
  if constexpr (in_place) {
    if (multiply_native(a, b, m, n, k, c, ldc, accumulate)) return;
  }
  Scratch& scratch = scratch_of_thread();
  Panel<T> panel_a{scratch.a}, panel_b{scratch.b};
  const int64_t row_step = piece_size(m, tile_rows), column_step = piece_size(n, tile_columns);
  const int64_t depth_step = piece_size(k, tile_depth);
  for (int64_t column = 0; column < n; column += column_step) {
    const int64_t columns = std::min(column_step, n - column);
    for (int64_t row = 0; row < m; row += row_step) {
      const int64_t rows = std::min(row_step, m - row);
      float* sums = scratch.c;
      int64_t stride = padded(columns);
      if constexpr (in_place) {
        sums = c + row * ldc + column;
        stride = ldc;
      }
      const auto add_products = [&] {
        if (!in_place && multiply_native(a.from(row, 0), b.from(0, column), rows, columns, k, sums, stride, false)) {
          return;
        }
        int64_t depth = 0;
        do {  // once where k is 0, which makes zeros
          const int64_t depths = std::min(depth_step, k - depth);
          const Factor<float> left = panel_a.convert(a, row, depth, rows, depths);
          const Factor<float> right = panel_b.convert(b, depth, column, depths, columns);
          gemm(left.transpose, right.transpose, rows, columns, depths, left.data, left.stride, right.data, right.stride,
               sums, stride, accumulate || depth > 0);
          depth += depth_step;
        } while (depth < k);
      };
      add_products();
      if constexpr (!in_place) {
        SHARDPIPE_DISPATCH(narrow_tile, T)
        (sums, stride, addends.row ? addends.row + column : nullptr,
         addends.matrix ? addends.matrix + row * ldc + column : nullptr, c + row * ldc + column, ldc, rows, columns);
      }
    }
  }
}

}  // namespace

template <HalfElement T>
void gemm(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
          const T* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  multiply<T, float>({transpose_a, a, lda}, {transpose_b, b, ldb}, m, n, k, c, ldc, accumulate, {});
}
template <HalfElement T>
void gemm(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
          const T* b, int64_t ldb, T* c, int64_t ldc, Addends<T> addends) {
  multiply<T, T>({transpose_a, a, lda}, {transpose_b, b, ldb}, m, n, k, c, ldc, false, addends);
}

uint64_t half_gemm_scratch_bytes() { return sizeof(Scratch); }

#define SHARDPIPE_INSTANCES(T)                                                                                      \
  template void gemm(Transpose, Transpose, int64_t, int64_t, int64_t, const T*, int64_t, const T*, int64_t, float*, \
                     int64_t, bool);                                                                                \
  template void gemm(Transpose, Transpose, int64_t, int64_t, int64_t, const T*, int64_t, const T*, int64_t, T*,     \
                     int64_t, Addends<T>)
SHARDPIPE_INSTANCES(BFloat16);
SHARDPIPE_INSTANCES(Float16);

}  // namespace shardpipe::kernels
#endif
