#include <base/error.h>
#include <kernels/cpu/dropout.h>
#include <kernels/cpu/philox.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/check.h"
#include "kernels/targets.h"

namespace shardpipe::kernels::test {
namespace {

constexpr DropoutKey some_key{.seed = 0x0123456789ABCDEF, .step = 77, .layer = 3, .site = 1};
constexpr uint64_t late_sample = (uint64_t{5} << 32) - 2;  // a batch from here crosses 2^32 words of the counter

uint32_t low(uint64_t bits) { return static_cast<uint32_t>(bits); }
uint32_t high(uint64_t bits) { return static_cast<uint32_t>(bits >> 32); }

// What the header says, element by element.
bool kept(const DropoutKey& key, uint64_t sample, uint64_t element, float probability) {
  const auto words = philox4x32({low(key.step), high(key.step), key.layer, key.site}, {low(key.seed), high(key.seed)});
  const uint64_t block = element / 4;
  const auto drawn = philox4x32({low(block), high(block), low(sample), high(sample)}, {words[0], words[1]});
  return static_cast<double>(drawn[element % 4]) >= std::round(double{probability} * 0x1p32);
}

// 1 where kept, 0 where not
Floats mask_of(const DropoutKey& key, uint64_t sample, int64_t elements, float probability) {
  Floats ones(static_cast<size_t>(elements), 1.0f), mask(ones.size());
  dropout_forward(ones.data(), mask.data(), key, sample, 1, elements, probability);
  for (float& value : mask) value = value != 0 ? 1.0f : 0.0f;
  return mask;
}

double sum_of(const Floats& values) {
  double sum = 0;
  for (const float value : values) sum += double{value};
  return sum;
}

// The known answers that Random123 publishes (tests/kat_vectors, lines "philox4x32 10").
TEST(Philox, GivesThePublishedKnownAnswers) {
  using Counter = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Dropout, IsTheDefinitionForEveryLengthAtEveryAddress) {
  under_each_target([] {
    const float probability = 0.3f, scale = static_cast<float>(1 / (1 - double{probability}));
    for (int64_t elements = 0; elements <= 70; ++elements) {
      for (const size_t offset : {0, 1, 3, 6}) {
        constexpr int64_t batch = 3;
        const size_t count = static_cast<size_t>(batch * elements);
        Floats x = random_floats(static_cast<int64_t>(offset + count), 1);  // ends with the memory
        Floats y(offset + count + 1, 9.0f);
        dropout_forward(x.data() + offset, y.data() + offset, some_key, late_sample, batch, elements, probability);
        for (size_t i = 0; i < count; ++i) {
          const uint64_t sample = late_sample + i / static_cast<size_t>(elements);
          const bool keep = kept(some_key, sample, i % static_cast<size_t>(elements), probability);
          ASSERT_EQ(y[offset + i], keep ? x[offset + i] * scale : 0.0f) << i << " of " << elements;
          ASSERT_TRUE(keep || !std::signbit(y[offset + i])) << "what is dropped is +0";
        }
        ASSERT_EQ(y.back(), 9.0f) << "beyond the end";
        dropout_forward(x.data() + offset, x.data() + offset, some_key, late_sample, batch, elements, probability);
        ASSERT_TRUE(
            std::equal(x.begin() + static_cast<int64_t>(offset), x.end(), y.begin() + static_cast<int64_t>(offset)))
            << "y may be the same memory as x";
      }
    }
  });
}

TEST(Dropout, MaskDoesNotDependOnTheMicroBatch) {
  constexpr int64_t samples = 12, elements = 4 * 37 + 3;
  const Floats x = random_floats(samples * elements, 2);
  Floats together(x.size());
  dropout_forward(x.data(), together.data(), some_key, late_sample, samples, elements, 0.1f);
  EXPECT_FALSE(same_bits(together, x));
  under_each_target([&] {
    for (int64_t batch = 1; batch <= samples; ++batch) {
      for (int64_t first = 0; first < samples; first += batch) {
        const int64_t rows = std::min(batch, samples - first);
        const size_t shift = static_cast<size_t>(batch + first) % 5;
        const auto begin = static_cast<size_t>(first * elements);
        Floats part(shift), y(shift + static_cast<size_t>(rows * elements));
        part.insert(part.end(), x.begin() + first * elements, x.begin() + (first + rows) * elements);
        dropout_forward(part.data() + shift, y.data() + shift, some_key, late_sample + static_cast<uint64_t>(first),
                        rows, elements, 0.1f);
        ASSERT_TRUE(std::equal(y.begin() + static_cast<int64_t>(shift), y.end(), together.data() + begin));
      }
    }
  });
}

TEST(Dropout, GradientIsMaskedAsTheValueWas) {
  const Floats x = random_floats(1001, 3, 1, 2), dy = random_floats(1001, 4, 1, 2);
  Floats y(x.size()), dx(x.size());
  dropout_forward(x.data(), y.data(), some_key, 9, 1, 1001, 0.4f);
  dropout_backward_input(dy.data(), dx.data(), some_key, 9, 1, 1001, 0.4f);
  const float scale = static_cast<float>(1 / (1 - double{0.4f}));
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(dx[i], y[i] == 0 ? 0.0f : dy[i] * scale) << i;
  }
}

TEST(Dropout, ProbabilityZeroGivesTheBits) {
  Floats x = random_floats(99, 5);
  const float infinity = std::numeric_limits<float>::infinity();
  std::ranges::copy(Floats{0.0f, -0.0f, std::numeric_limits<float>::denorm_min(), infinity, -infinity,
                           std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::signaling_NaN()},
                    x.begin());
  Floats y(x.size()), in_place = x;
  dropout_forward(x.data(), y.data(), some_key, 0, 3, 33, 0.0f);
  dropout_forward(in_place.data(), in_place.data(), some_key, 0, 3, 33, 0.0f);
  EXPECT_TRUE(same_bits(y, x));
  EXPECT_TRUE(same_bits(in_place, x));
}

TEST(Dropout, ProbabilityOutsideItsRangeIsRefused) {
  float x = 1;
  for (const float probability : {-0.1f, 1.0f, 1.5f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THROW(dropout_forward(&x, &x, some_key, 0, 1, 1, probability), InvariantError);
    EXPECT_THROW(dropout_backward_input(&x, &x, some_key, 0, 1, 1, probability), InvariantError);
    EXPECT_THROW(attention_dropout_tile(&x, 1, 1, some_key, {0, 1, 0, 0, 1, 0, 1}, probability), InvariantError);
  }
  EXPECT_THROW(attention_dropout_tile(&x, 2, 2, some_key, {0, 1, 0, 0, 1, 0, 1}, 0.1f), InvariantError);
}

// Bounds of five standard deviations: the seeds are fixed, so they hold always or never.
TEST(Dropout, DropsAtItsRate) {
  constexpr int64_t elements = 1 << 20;
  for (const float probability : {0x1p-10f, 0.1f, 0.5f, 0.9f}) {
    const Floats mask = mask_of(some_key, 1, elements, probability);
    const double p = double{probability}, deviation = std::sqrt(p * (1 - p) * elements);
    EXPECT_NEAR(elements - sum_of(mask), p * elements, 5 * deviation) << probability;
    for (size_t word = 0; word < 4; ++word) {  // of every word of the counters
      double dropped = 0;
      for (size_t i = word; i < mask.size(); i += 4) dropped += mask[i] == 0;
      EXPECT_NEAR(dropped, p * elements / 4, 5 * deviation / 2) << probability << ", word " << word;
    }
  }
}

TEST(Dropout, KeepsTheExpectedSum) {
  constexpr int64_t elements = 1 << 20;
  const Floats ones(elements, 1.0f);
  Floats y(elements);
  dropout_forward(ones.data(), y.data(), some_key, 0, 1, elements, 0.1f);
  EXPECT_NEAR(sum_of(y) / elements, 1, 5 * std::sqrt(0.1 / 0.9 / elements));
}

// Masks of what must not be shared agree as often as independent ones do.
TEST(Dropout, SeedsStepsLayersSitesAndSamplesHaveTheirOwnMasks) {
  constexpr int64_t elements = 1 << 16;
  constexpr float probability = 0.5f;
  const DropoutKey base{.seed = 1, .step = 2, .layer = 3, .site = 4};
  struct Place {
    DropoutKey key;
    uint64_t sample;
  };
  const auto changed = [&](auto&& change) {
    Place place{base, 10};
    change(place);
    return place;
  };
  const std::vector<Place> places = {
      {base, 10},
      changed([](Place& p) { p.key.seed = 2; }),
      changed([](Place& p) { p.key.seed += uint64_t{1} << 32; }),
      changed([](Place& p) { p.key.step = 3; }),
      changed([](Place& p) { p.key.step += uint64_t{1} << 32; }),
      changed([](Place& p) { p.key.layer = 4; }),
      changed([](Place& p) { p.key.site = 3; }),
      changed([](Place& p) { std::swap(p.key.layer, p.key.site); }),
      changed([](Place& p) { p.sample = 11; }),
      changed([](Place& p) { p.sample += uint64_t{1} << 32; }),
  };
  std::vector<Floats> masks;
  for (const Place& place : places) masks.push_back(mask_of(place.key, place.sample, elements, probability));
  for (size_t a = 0; a < masks.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      double agree = 0;
      for (size_t i = 0; i < masks[a].size(); ++i) agree += masks[a][i] == masks[b][i];
      EXPECT_NEAR(agree, elements / 2.0, 5 * std::sqrt(elements / 4.0)) << "places " << a << " and " << b;
    }
  }
}

AttentionTile whole_head(int64_t head, uint64_t sample, int64_t sequence) {
  return {.sample = sample,
          .sequence = sequence,
          .head = head,
          .first_query = 0,
          .queries = sequence,
          .first_key = 0,
          .keys = sequence};
}

TEST(AttentionDropout, TilesOfAnyCutGiveTheMaskOfTheDefinition) {
  under_each_target([] {
    constexpr float probability = 0.25f, scale = 1 / (1 - probability);
    std::mt19937 generator(4);
    for (const int64_t sequence : {1, 5, 64, 66, 131}) {
      const int64_t padded = (sequence + 3) / 4 * 4;
      for (const int64_t head : {0, 2}) {
        const auto expected = [&](int64_t query, int64_t key) {
          const auto element = static_cast<uint64_t>((head * sequence + query) * padded + key);
          return kept(some_key, late_sample, element, probability) ? scale : 0.0f;
        };
        for (int trial = 0; trial < 12; ++trial) {
          const auto below = [&](int64_t end) {
            return static_cast<int64_t>(generator() % static_cast<uint32_t>(end));
          };
          AttentionTile tile = whole_head(head, late_sample, sequence);
          if (trial > 0) {
            tile.first_query = below(sequence), tile.queries = 1 + below(sequence - tile.first_query);
            tile.first_key = below(sequence), tile.keys = 1 + below(sequence - tile.first_key);
          }
          const size_t offset = static_cast<size_t>(below(4));
          const int64_t spare = below(3);
          const auto check = [&](int64_t query_stride, int64_t key_stride, int64_t size) {
            Floats out(offset + static_cast<size_t>(size), -1.0f);
            attention_dropout_tile(out.data() + offset, query_stride, key_stride, some_key, tile, probability);
            size_t written = 0;
            for (int64_t query = 0; query < tile.queries; ++query) {
              for (int64_t key = 0; key < tile.keys; ++key) {
                const size_t place = offset + static_cast<size_t>(query * query_stride + key * key_stride);
                ASSERT_EQ(out[place], expected(tile.first_query + query, tile.first_key + key))
                    << "sequence " << sequence << " query " << tile.first_query + query << " key "
                    << tile.first_key + key;
                ++written;
              }
            }
            ASSERT_EQ(static_cast<size_t>(std::ranges::count(out, -1.0f)), out.size() - written)
                << "what is not of the tile is not written";
          };
          check(tile.keys + spare, 1, (tile.queries - 1) * (tile.keys + spare) + tile.keys);
          check(1, tile.queries + spare, (tile.keys - 1) * (tile.queries + spare) + tile.queries);
        }
      }
    }
  });
}

// In a long sequence the number of a counter passes 2^32 in the middle of a row (of row 171,798, at key 69,184), and of
// a vector.
TEST(AttentionDropout, ALongSequenceUsesAllBitsOfTheCounter) {
  under_each_target([] {
    constexpr int64_t sequence = 100'000;
    const AttentionTile tile{.sample = 5,
                             .sequence = sequence,
                             .head = 1,
                             .first_query = 71'790,
                             .queries = 20,
                             .first_key = 69'150,
                             .keys = 60};
    Floats rows(20 * 60), columns(20 * 60);
    attention_dropout_tile(rows.data(), 60, 1, some_key, tile, 0.5f);
    attention_dropout_tile(columns.data(), 1, 20, some_key, tile, 0.5f);
    for (int64_t query = 0; query < 20; ++query) {
      for (int64_t key = 0; key < 60; ++key) {
        const int64_t element = (sequence + tile.first_query + query) * sequence + tile.first_key + key;
        const float expected = kept(some_key, 5, static_cast<uint64_t>(element), 0.5f) ? 2.0f : 0.0f;
        ASSERT_EQ(rows[static_cast<size_t>(query * 60 + key)], expected) << "query " << query << " key " << key;
        ASSERT_EQ(columns[static_cast<size_t>(key * 20 + query)], expected) << "query " << query << " key " << key;
      }
    }
  });
}

TEST(AttentionDropout, ProbabilityZeroKeepsEveryElementAsItIs) {
  Floats out(64 * 64);
  attention_dropout_tile(out.data(), 64, 1, some_key, whole_head(0, 1, 64), 0.0f);
  EXPECT_EQ(out, Floats(64 * 64, 1.0f));
}

TEST(AttentionDropout, HeadsAndQueriesHaveTheirOwnMasks) {
  constexpr int64_t sequence = 256;
  const auto mask = [](int64_t head, uint64_t sample, uint32_t site) {
    Floats out(sequence * sequence);
    DropoutKey key = some_key;
    key.site = site;
    attention_dropout_tile(out.data(), sequence, 1, key, whole_head(head, sample, sequence), 0.5f);
    return out;
  };
  const Floats base = mask(0, 4, 1);
  for (const Floats& other : {mask(1, 4, 1), mask(0, 5, 1), mask(0, 4, 2)}) {
    double agree = 0;
    for (size_t i = 0; i < base.size(); ++i) agree += base[i] == other[i];
    EXPECT_NEAR(agree, sequence * sequence / 2.0, 5 * sequence / 2.0);
  }
  double agree = 0;  // of each row with the next
  for (size_t i = sequence; i < base.size(); ++i) agree += base[i] == base[i - sequence];
  EXPECT_NEAR(agree, sequence * (sequence - 1) / 2.0, 5 * sequence / 2.0);
}

}  // namespace
}  // namespace shardpipe::kernels::test
