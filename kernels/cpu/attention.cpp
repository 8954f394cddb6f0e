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
}
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

// c[rows, columns] = start + left[rows, depth] · right[depth, columns]
HWY_NOINLINE void multiply(Start start, const float* row_scale, Left left, const float* right, int64_t right_stride,
                           float* c, int64_t c_stride, int64_t rows, int64_t columns, int64_t depth) {
  const Floats d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  constexpr int block = 6;  // 6 rows × 2 vectors and their operands fill 16 registers
  const auto strip = [&]<int count>(int64_t row) HWY_ATTR {
    const Left from{left.data + row * left.row_stride, left.row_stride, left.column_stride};
    const float* scale = row_scale ? row_scale + row : nullptr;
    float* to = c + row * c_stride;
    int64_t i = 0;
    for (; i + 2 * step <= columns; i += 2 * step) {
      multiply_block<count, 2>(d, AllLanes{}, start, scale, from, right + i, right_stride, to + i, c_stride, depth);
    }
    for (; i + step <= columns; i += step) {
      multiply_block<count, 1>(d, AllLanes{}, start, scale, from, right + i, right_stride, to + i, c_stride, depth);
    }
    if (i < columns) {
      multiply_block<count, 1>(d, SomeLanes{static_cast<size_t>(columns - i)}, start, scale, from, right + i,
                               right_stride, to + i, c_stride, depth);
    }
  };
  int64_t row = 0;
  for (; row + block <= rows; row += block) strip.template operator()<block>(row);
  for (; row < rows; ++row) strip.template operator()<1>(row);
}

// to[columns, tile] = from[rows, columns]ᵀ · factor; the places of absent rows become 0
void transpose_tile(const float* from, int64_t stride, int64_t rows, int64_t columns, float factor, float* to) {
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row) to[column * tile + row] = from[row * stride + column] * factor;
    for (int64_t row = rows; row < tile; ++row) to[column * tile + row] = 0;
  }
}

// Scores lie key-major, [keys, queries]: a vector holds one key's scores for several queries, so that maxima and sums
// over keys need no step across lanes.
void attention_forward(const AttentionShape& shape, HeadsIn q, HeadsIn k, HeadsIn v, HeadsOut out, float* log_sum_exp,
                       void* workspace) {
  const Floats d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t width = shape.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  float* queries = static_cast<float*>(workspace);  // [head_dim, tile], scaled
  float* scores = queries + width * tile;           // [tile keys, tile queries], then probabilities
  float* maxima = scores + tile * tile;             // [tile queries]
  float* sums = maxima + tile;                      // [tile queries]
  float* rescale = sums + tile;                     // [tile queries]

  for (int64_t row = 0; row < shape.batch * shape.heads; ++row) {
    const int64_t batch = row / shape.heads;
    const int64_t head = row % shape.heads;
    const int64_t first_token = batch * shape.sequence;
    const float* q_head = q.data + first_token * q.stride + head * width;
    const float* k_head = k.data + first_token * k.stride + head / group * width;
    const float* v_head = v.data + first_token * v.stride + head / group * width;
    float* out_head = out.data + first_token * out.stride + head * width;

    for (int64_t first_query = 0; first_query < shape.sequence; first_query += tile) {
      const int64_t query_count = std::min(tile, shape.sequence - first_query);
      float* out_tile = out_head + first_query * out.stride;
      transpose_tile(q_head + first_query * q.stride, q.stride, query_count, width, scale, queries);
      std::fill_n(maxima, tile, lowest);
      std::fill_n(sums, tile, 0.0f);

      for (int64_t first_key = 0; first_key <= first_query; first_key += tile) {
        const int64_t key_count = std::min(tile, shape.sequence - first_key);
        const bool diagonal = first_key == first_query;
        multiply(Start::Zero, nullptr, {k_head + first_key * k.stride, k.stride, 1}, queries, tile, scores, tile,
                 key_count, tile, width);
        if (diagonal) {  // a key after its query: not seen
          for (int64_t key = 1; key < key_count; ++key) std::fill_n(scores + key * tile, key, lowest);
        }
        for (int64_t i = 0; i < tile; i += step) {
          const V old_maximum = hn::LoadU(d, maxima + i);
          V maximum = old_maximum;
          for (int64_t key = 0; key < key_count; ++key) {
            maximum = hn::Max(maximum, hn::LoadU(d, scores + key * tile + i));
          }
          const V factor = exponential(d, hn::Sub(old_maximum, maximum));
          V sum = hn::Mul(hn::LoadU(d, sums + i), factor);
          for (int64_t key = 0; key < key_count; ++key) {
            const V probability = exponential(d, hn::Sub(hn::LoadU(d, scores + key * tile + i), maximum));
            sum = hn::Add(sum, probability);
            hn::StoreU(probability, d, scores + key * tile + i);
          }
          hn::StoreU(maximum, d, maxima + i);
          hn::StoreU(sum, d, sums + i);
          hn::StoreU(factor, d, rescale + i);
        }
        multiply(first_key == 0 ? Start::Zero : Start::Scale, rescale, {scores, 1, tile}, v_head + first_key * v.stride,
                 v.stride, out_tile, out.stride, query_count, width, key_count);
      }

      float* out_log_sum_exp = log_sum_exp + row * shape.sequence + first_query;
      for (int64_t query = 0; query < query_count; ++query) {
        out_log_sum_exp[query] = maxima[query] + std::log(sums[query]);
        const V inverse = hn::Set(d, 1.0f / sums[query]);
        float* out_row = out_tile + query * out.stride;
        for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
          lanes.store(hn::Mul(lanes.load(d, out_row + i), inverse), d, out_row + i);
        });
      }
    }
  }
}

// Scores lie query-major, [queries, keys]. With P the probabilities, dP = dO·Vᵀ and D = rowsum(dO ∘ O):
// dS = P ∘ (dP - D) / √head_dim, dV = Pᵀ·dO, dK = dSᵀ·Q, dQ = dS·K (FlashAttention, algorithm 4).
void attention_backward_input(const AttentionShape& shape, HeadsIn dout, HeadsIn q, HeadsIn k, HeadsIn v, HeadsIn out,
                              const float* log_sum_exp, HeadsOut dq, HeadsOut dk, HeadsOut dv, void* workspace) {
  const Floats d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t width = shape.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  const V vector_scale = hn::Set(d, scale);
  float* keys = static_cast<float*>(workspace);    // [head_dim, tile], scaled
  float* values = keys + width * tile;             // [head_dim, tile]
  float* probabilities = values + width * tile;    // [tile queries, tile keys]
  float* gradients = probabilities + tile * tile;  // [tile queries, tile keys]: dP, then dS
  float* row_sums = gradients + tile * tile;       // [group, sequence]: D

  for (int64_t row = 0; row < shape.batch * shape.kv_heads; ++row) {
    const int64_t batch = row / shape.kv_heads;
    const int64_t kv_head = row % shape.kv_heads;
    const int64_t first_token = batch * shape.sequence;
    const float* k_head = k.data + first_token * k.stride + kv_head * width;
    const float* v_head = v.data + first_token * v.stride + kv_head * width;
    float* dk_head = dk.data + first_token * dk.stride + kv_head * width;
    float* dv_head = dv.data + first_token * dv.stride + kv_head * width;

    for (int64_t member = 0; member < group; ++member) {
      const int64_t head = kv_head * group + member;
      for (int64_t query = 0; query < shape.sequence; ++query) {
        const float* dout_row = dout.data + (first_token + query) * dout.stride + head * width;
        const float* out_row = out.data + (first_token + query) * out.stride + head * width;
        V sum = hn::Zero(d);
        for_each_vector(d, width, [&](int64_t i, auto lanes) HWY_ATTR {
          sum = hn::MulAdd(lanes.load(d, dout_row + i), lanes.load(d, out_row + i), sum);
        });
        row_sums[member * shape.sequence + query] = hn::GetLane(hn::SumOfLanes(d, sum));
      }
    }

    for (int64_t first_key = 0; first_key < shape.sequence; first_key += tile) {
      const int64_t key_count = std::min(tile, shape.sequence - first_key);
      transpose_tile(k_head + first_key * k.stride, k.stride, key_count, width, scale, keys);
      transpose_tile(v_head + first_key * v.stride, v.stride, key_count, width, 1.0f, values);
      Start key_start = Start::Zero;  // the group's heads, then their queries, are summed in ascending order

      for (int64_t member = 0; member < group; ++member) {
        const int64_t head = kv_head * group + member;
        const float* head_log_sum_exp = log_sum_exp + (batch * shape.heads + head) * shape.sequence;
        for (int64_t first_query = first_key; first_query < shape.sequence; first_query += tile) {
          const int64_t query_count = std::min(tile, shape.sequence - first_query);
          const int64_t token = first_token + first_query;
          const float* q_tile = q.data + token * q.stride + head * width;
          const float* dout_tile = dout.data + token * dout.stride + head * width;
          multiply(Start::Zero, nullptr, {q_tile, q.stride, 1}, keys, tile, probabilities, tile, query_count, tile,
                   width);
          multiply(Start::Zero, nullptr, {dout_tile, dout.stride, 1}, values, tile, gradients, tile, query_count, tile,
                   width);
          for (int64_t query = 0; query < query_count; ++query) {
            const V log_sum = hn::Set(d, head_log_sum_exp[first_query + query]);
            const V row_sum = hn::Set(d, row_sums[member * shape.sequence + first_query + query]);
            const int64_t seen = std::min(key_count, first_query + query - first_key + 1);
            float* p = probabilities + query * tile;
            float* ds = gradients + query * tile;
            for (int64_t i = 0; i < tile; i += step) {
              const auto is_seen = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(seen - i, 0)));
              const V probability = hn::IfThenElseZero(is_seen, exponential(d, hn::Sub(hn::LoadU(d, p + i), log_sum)));
              const V gradient = hn::Mul(hn::Mul(probability, hn::Sub(hn::LoadU(d, ds + i), row_sum)), vector_scale);
              hn::StoreU(probability, d, p + i);
              hn::StoreU(hn::IfThenElseZero(is_seen, gradient), d, ds + i);
            }
          }
          multiply(key_start, nullptr, {probabilities, 1, tile}, dout_tile, dout.stride,
                   dv_head + first_key * dv.stride, dv.stride, key_count, width, query_count);
          multiply(key_start, nullptr, {gradients, 1, tile}, q_tile, q.stride, dk_head + first_key * dk.stride,
                   dk.stride, key_count, width, query_count);
          key_start = Start::Keep;
          // the first keys meet every query: they overwrite, later ones add
          multiply(first_key == 0 ? Start::Zero : Start::Keep, nullptr, {gradients, tile, 1},
                   k_head + first_key * k.stride, k.stride, dq.data + token * dq.stride + head * width, dq.stride,
                   query_count, width, key_count);
        }
      }
    }
  }
}

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

HWY_EXPORT(attention_forward);
HWY_EXPORT(attention_backward_input);

uint64_t attention_workspace_bytes(const AttentionShape& shape) {
  // backward needs the most: two transposed tiles, two tiles of scores and the sums of a group's rows
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t floats = 2 * shape.head_dim * tile + 2 * tile * tile + std::max(group * shape.sequence, 3 * tile);
  return static_cast<uint64_t>(floats) * sizeof(float);
}
void attention_forward(const AttentionShape& shape, HeadsIn q, HeadsIn k, HeadsIn v, HeadsOut out, float* log_sum_exp,
                       void* workspace) {
  HWY_DYNAMIC_DISPATCH(attention_forward)(shape, q, k, v, out, log_sum_exp, workspace);
}
void attention_backward_input(const AttentionShape& shape, HeadsIn dout, HeadsIn q, HeadsIn k, HeadsIn v, HeadsIn out,
                              const float* log_sum_exp, HeadsOut dq, HeadsOut dk, HeadsOut dv, void* workspace) {
  HWY_DYNAMIC_DISPATCH(attention_backward_input)
  (shape, dout, q, k, v, out, log_sum_exp, dq, dk, dv, workspace);
}

}  // namespace shardpipe::kernels
#endif
