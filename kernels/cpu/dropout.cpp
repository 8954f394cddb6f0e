#include "kernels/cpu/dropout.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "kernels/cpu/philox.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector-inl.h"

// Shared by all instruction sets.
#ifndef SHARDPIPE_DROPOUT_DRAW
#define SHARDPIPE_DROPOUT_DRAW
namespace shardpipe::kernels {

constexpr int64_t block_elements = 4;  // of one counter

constexpr uint32_t low(uint64_t bits) { return static_cast<uint32_t>(bits); }
constexpr uint32_t high(uint64_t bits) { return static_cast<uint32_t>(bits >> 32); }

// What all elements of an array share.
struct Draw {
  std::array<uint32_t, 2> key;
  uint32_t threshold;  // words below it drop their element
  float scale;
};

}  // namespace shardpipe::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace shardpipe::kernels::HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using V = hn::Vec<Floats>;
using VWords = hn::Vec<Words>;

#if HWY_TARGET == HWY_SCALAR

struct Philox {
  std::array<uint32_t, 2> key;
  uint64_t sample;
};

template <class Body>
HWY_INLINE void for_each_words(const Philox& philox, uint64_t block, int64_t count, const Body& body) {
  const std::array<uint32_t, 2> sample = {low(philox.sample), high(philox.sample)};
  for (int64_t first = 0; first < count; first += block_elements, ++block) {
    const auto words = philox4x32({low(block), high(block), sample[0], sample[1]}, philox.key);
    for (int64_t i = first; i < std::min(first + block_elements, count); ++i) {
      body(i, AllLanes{}, hn::Set(Words(), words[static_cast<size_t>(i - first)]));
    }
  }
}

#else

using Pairs = hn::Repartition<uint64_t, Words>;
using VPairs = hn::Vec<Pairs>;

// Philox of one counter in each 64-bit lane. A word stands in the low half of its lane; what the high half holds means
// nothing, because a product reads low halves only, and gives both halves of its result in one lane.
struct Philox {
  uint64_t keys[philox_rounds][2];
  uint64_t sample;

  HWY_INLINE Philox(std::array<uint32_t, 2> key, uint64_t of_sample) : sample(of_sample) {
    for (auto& round : keys) {
      for (size_t side : {0, 1}) {
        round[side] = key[side];
        key[side] += philox_key_steps[side];
      }
    }
  }

  // Of two vectors of counters, because each waits for its own products.
  HWY_INLINE void draw(const VPairs (&blocks)[2], VPairs (&words)[2][4]) const {
    const Pairs d;
    const Words words_tag;
    const auto product = [&](VPairs v, uint32_t multiplier) HWY_ATTR {
      return hn::MulEven(hn::BitCast(words_tag, v), hn::Set(words_tag, multiplier));
    };
    for (size_t v = 0; v < 2; ++v) {
      words[v][0] = blocks[v];
      words[v][1] = hn::ShiftRight<32>(blocks[v]);
      words[v][2] = hn::Set(d, low(sample));
      words[v][3] = hn::Set(d, high(sample));
    }
    for (const auto& key : keys) {
      for (auto& w : words) {
        const VPairs product_0 = product(w[0], philox_multipliers[0]);
        const VPairs product_1 = product(w[2], philox_multipliers[1]);
        w[0] = hn::Xor(hn::ShiftRight<32>(product_1), hn::Xor(w[1], hn::Set(d, key[0])));
        w[1] = product_1;
        w[2] = hn::Xor(hn::ShiftRight<32>(product_0), hn::Xor(w[3], hn::Set(d, key[1])));
        w[3] = product_0;
      }
    }
  }
};

// {low half of `even`, low half of `odd`} in each lane
HWY_INLINE VPairs join(VPairs even, VPairs odd) {
  return hn::Or(hn::And(even, hn::Set(Pairs(), 0xFFFFFFFF)), hn::ShiftLeft<32>(odd));
}

// The words of `count` consecutive elements, in their order, a vector at a time: body(first element, lanes, words).
template <class Body>
HWY_INLINE void for_each_words(const Philox& philox, uint64_t first_block, int64_t count, const Body& body) {
  const Pairs d;
  const Words words_tag;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(words_tag));
  // Interleaving takes the even lanes of two vectors, then the odd ones (within 128 bits): these must hold the first,
  // then the second half of the counters.
  const VPairs lane = hn::Iota(d, 0);
  const VPairs odd = hn::And(lane, hn::Set(d, 1));
  const VPairs place = hn::IfThenElse(hn::Eq(odd, hn::Zero(d)), hn::ShiftRight<1>(lane),
                                      hn::Add(hn::ShiftRight<1>(lane), hn::Set(d, hn::Lanes(d) / 2)));
  const VPairs step = hn::Set(d, hn::Lanes(d));
  VPairs blocks[2];
  blocks[0] = hn::Add(hn::Set(d, first_block), place);
  blocks[1] = hn::Add(blocks[0], step);
  VWords words[4];
  const auto next = [&]() HWY_ATTR {
    VPairs drawn[2][4];
    philox.draw(blocks, drawn);
    for (size_t v = 0; v < 2; ++v) {
      const VPairs left = join(drawn[v][0], drawn[v][1]), right = join(drawn[v][2], drawn[v][3]);
      words[2 * v] = hn::BitCast(words_tag, hn::InterleaveLower(d, left, right));
      words[2 * v + 1] = hn::BitCast(words_tag, hn::InterleaveUpper(d, left, right));
      blocks[v] = hn::Add(blocks[v], hn::Add(step, step));
    }
  };
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    next();
    for (int64_t v = 0; v < 4; ++v) body(i + v * lanes, AllLanes{}, words[v]);
  }
  if (i == count) return;
  next();
  for (size_t v = 0; i < count; ++v, i += lanes) {
    if (i + lanes <= count) {
      body(i, AllLanes{}, words[v]);
    } else {
      body(i, SomeLanes{static_cast<size_t>(count - i)}, words[v]);
    }
  }
}

#endif

// v where the element is kept, else +0
HWY_INLINE V keep(VWords words, VWords threshold, V v) {
  return hn::IfThenZeroElse(hn::RebindMask(Floats(), hn::Lt(words, threshold)), v);
}

template <Element T>
void drop(const T* x, T* y, const Draw& draw, uint64_t first_sample, int64_t batch, int64_t elements_per_sample) {
  const Floats d;
  const V scale = hn::Set(d, draw.scale);
  const VWords threshold = hn::Set(Words(), draw.threshold);
  for (int64_t row = 0; row < batch; ++row) {
    const T* from = x + row * elements_per_sample;
    T* to = y + row * elements_per_sample;
    const Philox philox(draw.key, first_sample + static_cast<uint64_t>(row));
    for_each_words(philox, 0, elements_per_sample, [&](int64_t i, auto lanes, VWords words) HWY_ATTR {
      lanes.store(keep(words, threshold, hn::Mul(lanes.load(d, from + i), scale)), d, to + i);
    });
  }
}

// [queries, keys], keys packed
void fill_rows(float* multipliers, int64_t query_stride, const Draw& draw, const AttentionTile& tile) {
  const Floats d;
  const V scale = hn::Set(d, draw.scale);
  const VWords threshold = hn::Set(Words(), draw.threshold);
  const Philox philox(draw.key, tile.sample);
  const int64_t row_blocks = (tile.sequence + block_elements - 1) / block_elements;
  const int64_t cut = tile.first_key % block_elements;  // of the first counter's elements, not ours
  const int64_t head_keys = cut == 0 ? 0 : std::min(block_elements - cut, tile.keys);
  for (int64_t query = 0; query < tile.queries; ++query) {
    float* row = multipliers + query * query_stride;
    const auto block = static_cast<uint64_t>((tile.head * tile.sequence + tile.first_query + query) * row_blocks +
                                             tile.first_key / block_elements);
    if (head_keys > 0) {
      const auto words = philox4x32({low(block), high(block), low(tile.sample), high(tile.sample)}, draw.key);
      for (int64_t key = 0; key < head_keys; ++key) {
        row[key] = words[static_cast<size_t>(cut + key)] < draw.threshold ? 0.0f : draw.scale;
      }
    }
    float* rest = row + head_keys;
    for_each_words(philox, block + (cut == 0 ? 0 : 1), tile.keys - head_keys,
                   [&](int64_t i, auto lanes, VWords words)
                       HWY_ATTR { lanes.store(keep(words, threshold, scale), d, rest + i); });
  }
}

#if HWY_TARGET == HWY_SCALAR

void fill_columns(float* multipliers, int64_t key_stride, const Draw& draw, const AttentionTile& tile) {
  const int64_t row_blocks = (tile.sequence + block_elements - 1) / block_elements;
  for (int64_t query = 0; query < tile.queries; ++query) {
    const int64_t row = (tile.head * tile.sequence + tile.first_query + query) * row_blocks;
    for (int64_t key = 0; key < tile.keys; ++key) {
      const int64_t place = tile.first_key + key;
      const auto block = static_cast<uint64_t>(row + place / block_elements);
      const auto words = philox4x32({low(block), high(block), low(tile.sample), high(tile.sample)}, draw.key);
      const bool dropped = words[static_cast<size_t>(place % block_elements)] < draw.threshold;
      multipliers[key * key_stride + query] = dropped ? 0.0f : draw.scale;
    }
  }
}

#else

// [keys, queries], queries packed: each lane another query, whose four words are those of four keys
void fill_columns(float* multipliers, int64_t key_stride, const Draw& draw, const AttentionTile& tile) {
  const Floats d;
  const Pairs pairs;
  const V scale = hn::Set(d, draw.scale);
  const VWords threshold = hn::Set(Words(), draw.threshold);
  const Philox philox(draw.key, tile.sample);
  const int64_t row_blocks = (tile.sequence + block_elements - 1) / block_elements;
  HWY_ALIGN uint64_t offsets[hn::MaxLanes(pairs)];  // of the counters of every second query
  for (size_t lane = 0; lane < hn::Lanes(pairs); ++lane) offsets[lane] = 2 * lane * static_cast<uint64_t>(row_blocks);
  const VPairs offset = hn::Load(pairs, offsets);
  const int64_t last_key = tile.first_key + tile.keys;
  for_each_vector(d, tile.queries, [&](int64_t query, auto lanes) HWY_ATTR {
    const int64_t row = (tile.head * tile.sequence + tile.first_query + query) * row_blocks;
    for (int64_t first = tile.first_key / block_elements * block_elements; first < last_key; first += block_elements) {
      const VPairs even_block = hn::Add(offset, hn::Set(pairs, static_cast<uint64_t>(row + first / block_elements)));
      const VPairs odd_block = hn::Add(even_block, hn::Set(pairs, static_cast<uint64_t>(row_blocks)));
      VPairs drawn[2][4];
      philox.draw({even_block, odd_block}, drawn);
      for (int64_t word = 0; word < block_elements; ++word) {
        const int64_t key = first + word - tile.first_key;
        if (key < 0 || key >= tile.keys) continue;
        const VWords words = hn::BitCast(Words(), join(drawn[0][word], drawn[1][word]));
        lanes.store(keep(words, threshold, scale), d, multipliers + key * key_stride + query);
      }
    }
  });
}

#endif

}  // namespace shardpipe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::kernels {

SHARDPIPE_EXPORT(drop);
HWY_EXPORT(fill_rows);
HWY_EXPORT(fill_columns);

static Draw draw_of(const DropoutKey& key, float probability) {
  check_invariant(probability >= 0 && probability < 1, "dropout: a probability of {}, not 0 <= p < 1", probability);
  const auto words = philox4x32({low(key.step), high(key.step), key.layer, key.site}, {low(key.seed), high(key.seed)});
  return {.key = {words[0], words[1]},
          .threshold = static_cast<uint32_t>(std::llround(double{probability} * 0x1p32)),
          .scale = static_cast<float>(1.0 / (1.0 - double{probability}))};
}

template <Element T>
void dropout_forward(const T* x, T* y, const DropoutKey& key, uint64_t first_sample, int64_t batch,
                     int64_t elements_per_sample, float probability) {
  const Draw draw = draw_of(key, probability);
  if (probability > 0) {
    SHARDPIPE_DISPATCH(drop, T)(x, y, draw, first_sample, batch, elements_per_sample);
  } else if (x != y) {
    std::copy_n(x, batch * elements_per_sample, y);
  }
}
template <Element T>
void dropout_backward_input(const T* dy, T* dx, const DropoutKey& key, uint64_t first_sample, int64_t batch,
                            int64_t elements_per_sample, float probability) {
  dropout_forward(dy, dx, key, first_sample, batch, elements_per_sample, probability);
}

void attention_dropout_tile(float* multipliers, int64_t query_stride, int64_t key_stride, const DropoutKey& key,
                            const AttentionTile& tile, float probability) {
  check_invariant(query_stride == 1 || key_stride == 1, "dropout: strides {} and {}, neither of them 1", query_stride,
                  key_stride);
  const Draw draw = draw_of(key, probability);
  if (key_stride == 1) {
    HWY_DYNAMIC_DISPATCH(fill_rows)(multipliers, query_stride, draw, tile);
  } else {
    HWY_DYNAMIC_DISPATCH(fill_columns)(multipliers, key_stride, draw, tile);
  }
}

#define SHARDPIPE_INSTANCES(T)                                                                       \
  template void dropout_forward(const T*, T*, const DropoutKey&, uint64_t, int64_t, int64_t, float); \
  template void dropout_backward_input(const T*, T*, const DropoutKey&, uint64_t, int64_t, int64_t, float)
SHARDPIPE_FOR_EACH_ELEMENT(SHARDPIPE_INSTANCES);

}  // namespace shardpipe::kernels
#endif
