#include "shard/shard.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace shardpipe {
namespace {

TEST(Shards, CoverEveryElementOnceInRankOrder) {
  for (const uint64_t elements : {0, 1, 2, 3, 4, 5, 7, 63, 64, 65, 1000003})
    for (uint64_t ranks = 1; ranks <= 9; ++ranks) {
      const Shards cut = shards(elements, ranks);
      uint64_t next = 0;
      for (uint64_t r = 0; r < ranks; ++r) {
        const Range range = owned(cut, r);
        EXPECT_LE(range.begin, range.end);
        EXPECT_EQ(range.begin, next);
        EXPECT_LE(range.size(), cut.shard_elements);
        next = range.end;
      }
      EXPECT_EQ(next, elements) << elements << " over " << ranks;
    }
}

TEST(Shards, ArePaddedByLessThanOneElementARank) {
  for (const uint64_t elements : {0, 1, 4, 5, 1000003})
    for (uint64_t ranks = 1; ranks <= 9; ++ranks) {
      const Shards cut = shards(elements, ranks);
      EXPECT_GE(cut.padded_elements(), elements);
      EXPECT_LT(cut.padded_elements() - elements, ranks);
    }
}

// A LayerNorm vector of 4 over 7 ranks: three ranks own nothing.
TEST(Shards, OfAGroupSmallerThanItsRanksMayBeEmpty) {
  const Shards cut = shards(4, 7);
  EXPECT_EQ(cut.shard_elements, 1u);
  for (uint64_t r = 0; r < 7; ++r) EXPECT_EQ(owned(cut, r).size(), r < 4 ? 1u : 0u);
}

TEST(Shards, OfNoRanksAreRefused) { EXPECT_THROW(shards(4, 0), InvariantError); }

// Rajbhandari et al., arXiv:1910.02054: stage 1 shards optimizer states, 2 gradients, 3 parameters. For the accumulator
// the cadence decides: what is reduced once a step is whole until then.
TEST(Residency, IsWhatEachZeroStageKeepsInShards) {
  for (const ReduceEvery every : {ReduceEvery::Micro, ReduceEvery::Step})
    for (const int zero : {0, 1, 2, 3}) {
      const Residency kept = residency(zero, every);
      EXPECT_EQ(kept.optimizer_sharded, zero >= 1);
      EXPECT_EQ(kept.gradients_sharded, zero >= 1 && every == ReduceEvery::Micro);
      EXPECT_EQ(kept.parameters_sharded, zero == 3);
    }
  EXPECT_THROW(residency(4, ReduceEvery::Step), InvariantError);
  EXPECT_THROW(residency(-1, ReduceEvery::Step), InvariantError);
}

}  // namespace
}  // namespace shardpipe
