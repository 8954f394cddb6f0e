// Every product of tiles is one small kernel (`multiply`), and each element of each product is one chain of fused
// multiply-adds in ascending order: the bits depend on the shape alone.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

// Shared by all instruction sets, and by the size of the workspace.
#ifndef SHARDPIPE_ATTENTION_TILE
#define SHARDPIPE_ATTENTION_TILE
namespace shardpipe::kernels {
constexpr int64_t tile = 64;  // queries, and keys, of one tile: a multiple of every vector's length

// Of the workspace without dropout: backward needs the most, five tiles of heads, two of scores and the sums of a
// group's rows; then what is summed up in fp32 before it is rounded. Multipliers of dropout come behind.
inline int64_t floats_without_dropout(const AttentionShape& shape, DType type) {
  const int64_t group = shape.heads / shape.kv_heads;
  int64_t floats = 5 * shape.head_dim * tile + 2 * tile * tile + group * shape.sequence;
  if (type != DType::Float32) floats += (2 * tile + group * shape.sequence) * shape.head_dim;
  return floats;
}
}  // namespace shardpipe::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;

// A matrix whose element (row, column) lies at data[row·row_stride + column·column_stride].
struct Left {
  const float* data;
  int64_t row_stride, column_stride;
};

// c[rows, lanes·vectors] (from `init`) += left[rows, depth] · right[depth, …], all of it in registers.
// Start: 0, c itself, or c scaled by row.
enum class Start { Zero, Keep, Scale };

template <int rows, int vectors, class Lanes>
HWY_INLINE void multiply_block(Floats d, Lanes lanes, Start start, const float* row_scale, Left left,
                               const float* right, int64_t right_stride, float* c, int64_t c_stride, int64_t depth) {
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  V sums[rows][vectors];
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      sums[r][v] = start == Start::Zero ? hn::Zero(d) : lanes.load(d, c + r * c_stride + v * step);
      if (start == Start::Scale) sums[r][v] = hn::Mul(sums[r][v], hn::Set(d, row_scale[r]));
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    V from_right[vectors];
    for (int v = 0; v < vectors; ++v) from_right[v] = lanes.load(d, right + k * right_stride + v * step);
    for (int r = 0; r < rows; ++r) {
      const V from_left = hn::Set(d, left.data[r * left.row_stride + k * left.column_stride]);
      for (int v = 0; v < vectors; ++v) sums[r][v] = hn::MulAdd(from_left, from_right[v], sums[r][v]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) lanes.store(sums[r][v], d, c + r * c_stride + v * step);
  }
}

// On the diagonal, where a tile's queries meet their own keys, half of each product is masked: these say which part of
// it counts for a row, and the rest is left out (columns, which are then not written) or taken to be 0 (depth).
enum class Columns { All, UpToRow, FromRow };
enum class Depth { All, UpToRow, FromRow };

// c[rows, columns] = start + left[rows, depth] · right[depth, columns]
HWY_NOINLINE void multiply(Start start, const float* row_scale, Left left, const float* right, int64_t right_stride,
                           float* c, int64_t c_stride, int64_t rows, int64_t columns, int64_t depth,
                           Columns counted_columns = Columns::All, Depth counted_depth = Depth::All) {
  const Floats d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  const auto strip = [&]<int count>(int64_t row) HWY_ATTR {
    const int64_t first_k = counted_depth == Depth::FromRow ? std::min(row, depth) : 0;
    const int64_t last_k = counted_depth == Depth::UpToRow ? std::min(row + count, depth) : depth;
    const int64_t last_column = counted_columns == Columns::UpToRow ? std::min(row + count, columns) : columns;
    const Left from{left.data + row * left.row_stride + first_k * left.column_stride, left.row_stride,
                    left.column_stride};
    const float* right_rows = right + first_k * right_stride;
    const float* scale = row_scale ? row_scale + row : nullptr;
    float* to = c + row * c_stride;
    const int64_t length = last_k - first_k;
    int64_t i = counted_columns == Columns::FromRow ? row / (2 * step) * (2 * step) : 0;
    // where a row ends in the middle of a vector, the rest of that vector may be written if the matrix has it
    for (; i < last_column && i + 2 * step <= columns; i += 2 * step) {
      multiply_block<count, 2>(d, AllLanes{}, start, scale, from, right_rows + i, right_stride, to + i, c_stride,
                               length);
    }
    for (; i < last_column && i + step <= columns; i += step) {
      multiply_block<count, 1>(d, AllLanes{}, start, scale, from, right_rows + i, right_stride, to + i, c_stride,
                               length);
    }
    if (i < last_column) {
      multiply_block<count, 1>(d, SomeLanes{static_cast<size_t>(columns - i)}, start, scale, from, right_rows + i,
                               right_stride, to + i, c_stride, length);
    }
  };
  // 6 rows × 2 vectors and their operands fill AVX2's 16 registers; 4 are what remains of a tile of 64
  int64_t row = 0;
  for (; row + 6 <= rows; row += 6) strip.template operator()<6>(row);
  for (; row + 4 <= rows; row += 4) strip.template operator()<4>(row);
  for (; row < rows; ++row) strip.template operator()<1>(row);
}

// to[columns, tile] = from[rows, columns]ᵀ · factor; the places of absent rows become 0
void transpose_tile(const float* from, int64_t stride, int64_t rows, int64_t columns, float factor, float* to) {
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row) to[column * tile + row] = from[row * stride + column] * factor;
    for (int64_t row = rows; row < tile; ++row) to[column * tile + row] = 0;
  }
}

// to[rows, columns] = from, without its stride: rows that lie a multiple of 1 KiB apart share a few sets of the nearest
// cache, and a product that reads them again and again waits for the next one.
template <Element T>
void pack_tile(const T* from, int64_t stride, int64_t rows, int64_t columns, float* to) {
  const Floats d;
  for (int64_t row = 0; row < rows; ++row) {
    for_each_vector(d, columns, [&](int64_t i, auto lanes) HWY_ATTR {
      lanes.store(lanes.load(d, from + row * stride + i), d, to + row * columns + i);
    });
  }
}

// to [rows, columns], with its stride, = from, without
template <Element T>
void unpack_tile(const float* from, int64_t rows, int64_t columns, T* to, int64_t stride) {
  const Floats d;
  for (int64_t row = 0; row < rows; ++row) {
    for_each_vector(d, columns, [&](int64_t i, auto lanes) HWY_ATTR {
      lanes.store(lanes.load(d, from + row * columns + i), d, to + row * stride + i);
    });
  }
}

// A tile of floats, wherever it lies.
struct Tile {
  float* data;
  int64_t stride;
};
struct ConstTile {
  const float* data;
  int64_t stride;
};

// Floats are read where they are; others by way of `scratch` [rows, columns].
ConstTile as_floats(const float* from, int64_t stride, int64_t, int64_t, float*) { return {from, stride}; }
template <HalfElement T>
ConstTile as_floats(const T* from, int64_t stride, int64_t rows, int64_t columns, float* scratch) {
  pack_tile(from, stride, rows, columns, scratch);
  return {scratch, columns};
}

// Floats are summed up where they belong; others in `scratch`, with rows of `columns`, until they are complete.
Tile summed_in(float* to, int64_t stride, int64_t, float*) { return {to, stride}; }
template <HalfElement T>
Tile summed_in(T*, int64_t, int64_t columns, float* scratch) {
  return {scratch, columns};
}

// Scores lie key-major, [keys, queries]: a vector holds one key's scores for several queries, so that maxima and sums
// over keys need no step across lanes.
template <Element T>
void attention_forward(const AttentionShape& shape, HeadsIn<T> q, HeadsIn<T> k, HeadsIn<T> v, HeadsOut<T> out,
                       float* log_sum_exp, void* workspace, const AttentionDropout* dropout) {
  const Floats d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t width = shape.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  float* queries = static_cast<float*>(workspace);  // [head_dim, tile], scaled
  float* values = queries + width * tile;           // [tile, head_dim]
  float* scores = values + width * tile;            // [tile keys, tile queries], then probabilities
  float* maxima = scores + tile * tile;             // [tile queries]
  float* sums = maxima + tile;                      // [tile queries]
  float* rescale = sums + tile;                     // [tile queries]
  float* keys = rescale + tile;                     // [tile, head_dim], where they are not floats already
  float* sums_of_values = keys + width * tile;      // [tile, head_dim], likewise
  float* multipliers =                              // [tile keys, tile queries], where there is dropout
      static_cast<float*>(workspace) + floats_without_dropout(shape, dtype_of<T>);

  for (int64_t row = 0; row < shape.batch * shape.heads; ++row) {
    const int64_t batch = row / shape.heads;
    const int64_t head = row % shape.heads;
    const int64_t first_token = batch * shape.sequence;
    const T* q_head = q.data + first_token * q.stride + head * width;
    const T* k_head = k.data + first_token * k.stride + head / group * width;
    const T* v_head = v.data + first_token * v.stride + head / group * width;
    T* out_head = out.data + first_token * out.stride + head * width;

    for (int64_t first_query = 0; first_query < shape.sequence; first_query += tile) {
      const int64_t query_count = std::min(tile, shape.sequence - first_query);
      T* const out_rows = out_head + first_query * out.stride;
      const Tile out_tile = summed_in(out_rows, out.stride, width, sums_of_values);
      const ConstTile query_tile =
          as_floats(q_head + first_query * q.stride, q.stride, query_count, width, sums_of_values);
      transpose_tile(query_tile.data, query_tile.stride, query_count, width, scale, queries);
      std::fill_n(maxima, tile, lowest);
      std::fill_n(sums, tile, 0.0f);

      for (int64_t first_key = 0; first_key <= first_query; first_key += tile) {
        const int64_t key_count = std::min(tile, shape.sequence - first_key);
        const bool diagonal = first_key == first_query;
        const ConstTile key_tile = as_floats(k_head + first_key * k.stride, k.stride, key_count, width, keys);
        multiply(Start::Zero, nullptr, {key_tile.data, key_tile.stride, 1}, queries, tile, scores, tile, key_count,
                 tile, width, diagonal ? Columns::FromRow : Columns::All);
        if (diagonal) {  // a key after its query: not seen
          for (int64_t key = 1; key < key_count; ++key) std::fill_n(scores + key * tile, key, lowest);
        }
        for (int64_t i = 0; i < tile; i += step) {
          const int64_t seen = diagonal ? std::min(key_count, i + step) : key_count;  // by any query of this vector
          const V old_maximum = hn::LoadU(d, maxima + i);
          V maximum = old_maximum;
          for (int64_t key = 0; key < seen; ++key) {
            maximum = hn::Max(maximum, hn::LoadU(d, scores + key * tile + i));
          }
          const V factor = exponential(d, hn::Sub(old_maximum, maximum));
          V sum = hn::Mul(hn::LoadU(d, sums + i), factor);
          for (int64_t key = 0; key < seen; ++key) {
            const V probability = exponential(d, hn::Sub(hn::LoadU(d, scores + key * tile + i), maximum));
            sum = hn::Add(sum, probability);
            hn::StoreU(probability, d, scores + key * tile + i);
          }
          for (int64_t key = seen; key < key_count; ++key) hn::StoreU(hn::Zero(d), d, scores + key * tile + i);
          hn::StoreU(maximum, d, maxima + i);
          hn::StoreU(sum, d, sums + i);
          hn::StoreU(factor, d, rescale + i);
        }
        if (dropout != nullptr) {  // of the probabilities; what they are divided by stays the sum of all
          attention_dropout_tile(multipliers, 1, tile, dropout->key,
                                 {dropout->first_sample + static_cast<uint64_t>(batch), shape.sequence, head,
                                  first_query, query_count, first_key, key_count},
                                 dropout->probability);
          for (int64_t key = 0; key < key_count; ++key) {
            float* const row_of_key = scores + key * tile;
            for_each_vector(d, query_count, [&](int64_t i, auto lanes) HWY_ATTR {
              lanes.store(hn::Mul(lanes.load(d, row_of_key + i), lanes.load(d, multipliers + key * tile + i)), d,
                          row_of_key + i);
            });
          }
        }
        pack_tile(v_head + first_key * v.stride, v.stride, key_count, width, values);
        multiply(first_key == 0 ? Start::Zero : Start::Scale, rescale, {scores, 1, tile}, values, width, out_tile.data,
                 out_tile.stride, query_count, width, key_count, Columns::All, diagonal ? Depth::UpToRow : Depth::All);
      }

      float* out_log_sum_exp = log_sum_exp + row * shape.sequence + first_query;
      for (int64_t query = 0; query < query_count; ++query) {
        out_log_sum_exp[query] = maxima[query] + std::log(sums[query]);
        const V inverse = hn::Set(d, 1.0f / sums[query]);
        const float* from = out_tile.data + query * out_tile.stride;
        T* to = out_rows + query * out.stride;
        for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
          lanes.store(hn::Mul(lanes.load(d, from + i), inverse), d, to + i);
        });
      }
    }
  }
}

// Scores lie query-major, [queries, keys]. With P the probabilities, dP = dO·Vᵀ and D = rowsum(dO ∘ O):
// dS = P ∘ (dP - D) / √head_dim, dV = Pᵀ·dO, dK = dSᵀ·Q, dQ = dS·K (FlashAttention, algorithm 4). Dropout with
// multipliers M: P ∘ M in dV, dP ∘ M in dS.
template <Element T>
void attention_backward_input(const AttentionShape& shape, HeadsIn<T> dout, HeadsIn<T> q, HeadsIn<T> k, HeadsIn<T> v,
                              HeadsIn<T> out, const float* log_sum_exp, HeadsOut<T> dq, HeadsOut<T> dk, HeadsOut<T> dv,
                              void* workspace, const AttentionDropout* dropout) {
  const Floats d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t width = shape.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  const V vector_scale = hn::Set(d, scale);
  float* keys_across = static_cast<float*>(workspace);     // [head_dim, tile], scaled
  float* values_across = keys_across + width * tile;       // [head_dim, tile]
  float* keys = values_across + width * tile;              // [tile, head_dim]
  float* queries = keys + width * tile;                    // [tile, head_dim]
  float* output_gradients = queries + width * tile;        // [tile, head_dim]
  float* probabilities = output_gradients + width * tile;  // [tile queries, tile keys]
  float* gradients = probabilities + tile * tile;          // [tile queries, tile keys]: dP, then dS
  float* row_sums = gradients + tile * tile;               // [group, sequence]: D
  // where what is computed is not stored as float:
  float* key_gradients = row_sums + group * shape.sequence;  // [tile, head_dim]
  float* value_gradients = key_gradients + width * tile;     // [tile, head_dim]
  float* query_gradients = value_gradients + width * tile;   // [group, sequence, head_dim]
  float* multipliers =                                       // [tile queries, tile keys], where there is dropout
      static_cast<float*>(workspace) + floats_without_dropout(shape, dtype_of<T>);

  for (int64_t row = 0; row < shape.batch * shape.kv_heads; ++row) {
    const int64_t batch = row / shape.kv_heads;
    const int64_t kv_head = row % shape.kv_heads;
    const int64_t first_token = batch * shape.sequence;
    const T* k_head = k.data + first_token * k.stride + kv_head * width;
    const T* v_head = v.data + first_token * v.stride + kv_head * width;
    T* dk_head = dk.data + first_token * dk.stride + kv_head * width;
    T* dv_head = dv.data + first_token * dv.stride + kv_head * width;

    for (int64_t member = 0; member < group; ++member) {
      const int64_t head = kv_head * group + member;
      for (int64_t query = 0; query < shape.sequence; ++query) {
        const T* dout_row = dout.data + (first_token + query) * dout.stride + head * width;
        const T* out_row = out.data + (first_token + query) * out.stride + head * width;
        V sum = hn::Zero(d);
        for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
          sum = hn::MulAdd(lanes.load(d, dout_row + i), lanes.load(d, out_row + i), sum);
        });
        row_sums[member * shape.sequence + query] = hn::GetLane(hn::SumOfLanes(d, sum));
      }
    }

    for (int64_t first_key = 0; first_key < shape.sequence; first_key += tile) {
      const int64_t key_count = std::min(tile, shape.sequence - first_key);
      T* const dk_rows = dk_head + first_key * dk.stride;
      T* const dv_rows = dv_head + first_key * dv.stride;
      const Tile dk_tile = summed_in(dk_rows, dk.stride, width, key_gradients);
      const Tile dv_tile = summed_in(dv_rows, dv.stride, width, value_gradients);
      const ConstTile value_tile =
          as_floats(v_head + first_key * v.stride, v.stride, key_count, width, value_gradients);
      pack_tile(k_head + first_key * k.stride, k.stride, key_count, width, keys);
      transpose_tile(keys, width, key_count, width, scale, keys_across);
      transpose_tile(value_tile.data, value_tile.stride, key_count, width, 1.0f, values_across);
      Start key_start = Start::Zero;  // the group's heads, then their queries, are summed in ascending order

      for (int64_t member = 0; member < group; ++member) {
        const int64_t head = kv_head * group + member;
        const float* head_log_sum_exp = log_sum_exp + (batch * shape.heads + head) * shape.sequence;
        for (int64_t first_query = first_key; first_query < shape.sequence; first_query += tile) {
          const int64_t query_count = std::min(tile, shape.sequence - first_query);
          const int64_t token = first_token + first_query;
          const bool diagonal = first_key == first_query;
          const Columns seen_keys = diagonal ? Columns::UpToRow : Columns::All;
          const Depth seeing_queries = diagonal ? Depth::FromRow : Depth::All;
          pack_tile(q.data + token * q.stride + head * width, q.stride, query_count, width, queries);
          pack_tile(dout.data + token * dout.stride + head * width, dout.stride, query_count, width, output_gradients);
          multiply(Start::Zero, nullptr, {queries, width, 1}, keys_across, tile, probabilities, tile, query_count, tile,
                   width, seen_keys);
          multiply(Start::Zero, nullptr, {output_gradients, width, 1}, values_across, tile, gradients, tile,
                   query_count, tile, width, seen_keys);
          if (dropout != nullptr)
            attention_dropout_tile(multipliers, tile, 1, dropout->key,
                                   {dropout->first_sample + static_cast<uint64_t>(batch), shape.sequence, head,
                                    first_query, query_count, first_key, key_count},
                                   dropout->probability);
          for (int64_t query = 0; query < query_count; ++query) {
            const V log_sum = hn::Set(d, head_log_sum_exp[first_query + query]);
            const V row_sum = hn::Set(d, row_sums[member * shape.sequence + first_query + query]);
            const int64_t seen = std::min(key_count, first_query + query - first_key + 1);
            float* p = probabilities + query * tile;
            float* ds = gradients + query * tile;
            int64_t i = 0;
            for (; i < seen; i += step) {
              const auto is_seen = hn::FirstN(d, static_cast<size_t>(seen - i));
              const V probability = exponential(d, hn::Sub(hn::LoadU(d, p + i), log_sum));
              V kept = probability, kept_gradient = hn::LoadU(d, ds + i);
              if (dropout != nullptr) {
                const V multiplier = hn::LoadU(d, multipliers + query * tile + i);
                kept = hn::Mul(probability, multiplier);
                kept_gradient = hn::Mul(kept_gradient, multiplier);
              }
              const V gradient = hn::Mul(hn::Mul(probability, hn::Sub(kept_gradient, row_sum)), vector_scale);
              hn::StoreU(hn::IfThenElseZero(is_seen, kept), d, p + i);
              hn::StoreU(hn::IfThenElseZero(is_seen, gradient), d, ds + i);
            }
            for (; i < tile; i += step) {
              hn::StoreU(hn::Zero(d), d, p + i);
              hn::StoreU(hn::Zero(d), d, ds + i);
            }
          }
          multiply(key_start, nullptr, {probabilities, 1, tile}, output_gradients, width, dv_tile.data, dv_tile.stride,
                   key_count, width, query_count, Columns::All, seeing_queries);
          multiply(key_start, nullptr, {gradients, 1, tile}, queries, width, dk_tile.data, dk_tile.stride, key_count,
                   width, query_count, Columns::All, seeing_queries);
          key_start = Start::Keep;
          const Tile dq_tile = summed_in(dq.data + token * dq.stride + head * width, dq.stride, width,
                                         query_gradients + (member * shape.sequence + first_query) * width);
          // the first keys meet every query: they overwrite, later ones add
          multiply(first_key == 0 ? Start::Zero : Start::Keep, nullptr, {gradients, tile, 1}, keys, width, dq_tile.data,
                   dq_tile.stride, query_count, width, key_count, Columns::All, diagonal ? Depth::UpToRow : Depth::All);
        }
      }
      if constexpr (HalfElement<T>) {
        unpack_tile(key_gradients, key_count, width, dk_rows, dk.stride);
        unpack_tile(value_gradients, key_count, width, dv_rows, dv.stride);
      }
    }
    if constexpr (HalfElement<T>) {
      for (int64_t member = 0; member < group; ++member) {
        unpack_tile(query_gradients + member * shape.sequence * width, shape.sequence, width,
                    dq.data + first_token * dq.stride + (kv_head * group + member) * width, dq.stride);
      }
    }
  }
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

SHARDPIPE_EXPORT(attention_forward);
SHARDPIPE_EXPORT(attention_backward_input);

uint64_t attention_workspace_bytes(const AttentionShape& shape, DType type, bool with_dropout) {
  const int64_t floats = floats_without_dropout(shape, type) + (with_dropout ? tile * tile : 0);
  return static_cast<uint64_t>(floats) * sizeof(float);
}
template <Element T>
void attention_forward(const AttentionShape& shape, HeadsIn<T> q, HeadsIn<T> k, HeadsIn<T> v, HeadsOut<T> out,
                       float* log_sum_exp, void* workspace, const AttentionDropout* dropout) {
  SHARDPIPE_DISPATCH(attention_forward, T)(shape, q, k, v, out, log_sum_exp, workspace, dropout);
}
template <Element T>
void attention_backward_input(const AttentionShape& shape, HeadsIn<T> dout, HeadsIn<T> q, HeadsIn<T> k, HeadsIn<T> v,
                              HeadsIn<T> out, const float* log_sum_exp, HeadsOut<T> dq, HeadsOut<T> dk, HeadsOut<T> dv,
                              void* workspace, const AttentionDropout* dropout) {
  SHARDPIPE_DISPATCH(attention_backward_input, T)
  (shape, dout, q, k, v, out, log_sum_exp, dq, dk, dv, workspace, dropout);
}

#define SHARDPIPE_INSTANCES(T)                                                                                    \
  template void attention_forward(const AttentionShape&, HeadsIn<T>, HeadsIn<T>, HeadsIn<T>, HeadsOut<T>, float*, \
                                  void*, const AttentionDropout*);                                                \
  template void attention_backward_input(const AttentionShape&, HeadsIn<T>, HeadsIn<T>, HeadsIn<T>, HeadsIn<T>,   \
                                         HeadsIn<T>, const float*, HeadsOut<T>, HeadsOut<T>, HeadsOut<T>, void*,  \
                                         const AttentionDropout*)
SHARDPIPE_FOR_EACH_ELEMENT(SHARDPIPE_INSTANCES);

}  // namespace shardpipe::kernels
#endif
