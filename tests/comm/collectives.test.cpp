#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/error.h"
#include "comm/groups.h"

namespace shardpipe {
namespace {

using testing::Each;
using testing::ElementsAreArray;
using testing::HasSubstr;

// Bits, not values: -0 is not 0, and NaN equals itself.
bool same_bits(std::span<const float> one, std::span<const float> other) {
  if (one.size() != other.size()) return false;
  return one.empty() || std::memcmp(one.data(), other.data(), one.size_bytes()) == 0;
}

class Collectives : public testing::TestWithParam<int> {};  // of a group of so many ranks
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Range(1, 10));

constexpr size_t sizes[] = {0, 1, 2, 7, 16, 33, 2048, 9001};

TEST_P(Collectives, AllGatherPutsShardsInRankOrder) {
  with_group(GetParam(), [](Communicator& group) {
    for (const size_t count : sizes) {
      std::vector<float> expected;
      for (int rank = 0; rank < group.size(); ++rank)
        std::ranges::copy(values_of(rank, count), std::back_inserter(expected));
      std::vector<float> whole(expected.size(), NAN);
      all_gather(group, values_of(group.rank(), count), whole);
      EXPECT_TRUE(same_bits(whole, expected)) << "shard of " << count;
    }
  });
}

TEST_P(Collectives, AllGatherInPlaceOfTheOwnPart) {
  with_group(GetParam(), [](Communicator& group) {
    for (const size_t count : sizes) {
      std::vector<float> expected;
      for (int rank = 0; rank < group.size(); ++rank)
        std::ranges::copy(values_of(rank, count), std::back_inserter(expected));
      std::vector<float> whole(expected.size(), NAN);
      const std::span<float> own = std::span(whole).subspan(static_cast<size_t>(group.rank()) * count, count);
      std::ranges::copy(values_of(group.rank(), count), own.begin());
      all_gather(group, own, whole);
      EXPECT_TRUE(same_bits(whole, expected)) << "shard of " << count;
    }
  });
}

TEST_P(Collectives, ReduceScatterSumsPairwiseInRankOrder) {
  with_group(GetParam(), [](Communicator& group) {
    for (const size_t count : sizes) {
      const size_t ranks = static_cast<size_t>(group.size()), first = static_cast<size_t>(group.rank()) * count;
      const std::vector<float> sum = sum_of_ranks(group.size(), count * ranks);
      const std::span<const float> expected = std::span(sum).subspan(first, count);
      const std::vector<float> whole = values_of(group.rank(), count * ranks);

      std::vector<float> shard(count, NAN);
      group.reduce_scatter(whole, shard, false);
      EXPECT_TRUE(same_bits(shard, expected)) << "shard of " << count;

      std::vector<float> in_place = whole;
      group.reduce_scatter(in_place, std::span(in_place).subspan(first, count), false);
      EXPECT_TRUE(same_bits(std::span(in_place).subspan(first, count), expected)) << "in place, shard of " << count;

      std::vector<float> added = values_of(group.rank(), count, 7), expected_added = added;
      for (size_t i = 0; i < count; ++i) expected_added[i] += expected[i];
      group.reduce_scatter(whole, added, true);
      EXPECT_TRUE(same_bits(added, expected_added)) << "accumulated, shard of " << count;
    }
  });
}

// Terms in 16 bits: the sums are those of the same terms in fp32, half the bytes of the terms are sent.
TEST_P(Collectives, RoundedTermsAreSummedInFp32) {
  with_group(GetParam(), [](Communicator& group) {
    const auto ranks = static_cast<size_t>(group.size());
    for (const size_t count : sizes) {
      std::vector<std::vector<BFloat16>> rounded(ranks);
      std::vector<std::vector<float>> terms(ranks);
      for (int rank = 0; rank < group.size(); ++rank)
        for (const float value : values_of(rank, count * ranks)) {
          rounded[static_cast<size_t>(rank)].push_back(from_float<BFloat16>(value));
          terms[static_cast<size_t>(rank)].push_back(to_float(rounded[static_cast<size_t>(rank)].back()));
        }
      const std::vector<float> sum = pairwise_sum(terms);
      const auto own = static_cast<size_t>(group.rank());
      const std::span<const BFloat16> mine = rounded[own];
      const std::span<const float> expected = std::span(sum).subspan(own * count, count);
      WireBytes before = group.wire_bytes();

      std::vector<float> shard(count, NAN);
      group.reduce_scatter(mine, shard, false);
      EXPECT_TRUE(same_bits(shard, expected)) << "shard of " << count;
      EXPECT_EQ(group.wire_bytes().reduce_scatter - before.reduce_scatter, 2 * count * (ranks - 1));

      std::vector<float> added = values_of(group.rank(), count, 7), expected_added = added;
      for (size_t i = 0; i < count; ++i) expected_added[i] += expected[i];
      group.reduce_scatter(mine, added, true);
      EXPECT_TRUE(same_bits(added, expected_added)) << "accumulated, shard of " << count;

      std::vector<float> all(count * ranks, NAN);
      group.all_reduce(mine, all, false);
      EXPECT_TRUE(same_bits(all, sum)) << "all-reduce of " << count * ranks;
      EXPECT_EQ(group.wire_bytes().all_reduce - before.all_reduce, (2 + 4) * count * (ranks - 1));

      std::vector<float> sums = values_of(group.rank(), count * ranks, 7), expected_sums = sums;
      for (size_t i = 0; i < sums.size(); ++i) expected_sums[i] += sum[i];
      group.all_reduce(mine, sums, true);
      EXPECT_TRUE(same_bits(sums, expected_sums)) << "accumulated all-reduce of " << count * ranks;
    }
  });
}

// Integers of all 64 bits: a detour over a double would lose some.
TEST_P(Collectives, SumsOfIntegersAreExact) {
  with_group(GetParam(), [](Communicator& group) {
    const auto value = [](size_t rank, size_t i) {
      return (static_cast<int64_t>(i * 7919 + rank * 104'729) << 20) + static_cast<int64_t>(i + 3 * rank) - 5;
    };
    for (const size_t count : sizes) {
      const auto ranks = static_cast<size_t>(group.size()), own = static_cast<size_t>(group.rank());
      std::vector<int64_t> mine(count * ranks), sum(count * ranks, 0), all(count * ranks, -1), shard(count, 11);
      for (size_t i = 0; i < mine.size(); ++i) {
        mine[i] = value(own, i);
        for (size_t rank = 0; rank < ranks; ++rank) sum[i] += value(rank, i);
      }
      std::vector<int64_t> expected(sum.begin() + static_cast<ptrdiff_t>(own * count),
                                    sum.begin() + static_cast<ptrdiff_t>((own + 1) * count));
      for (int64_t& element : expected) element += 11;
      const WireBytes before = group.wire_bytes();
      group.reduce_scatter(std::span<const int64_t>(mine), shard, true);
      EXPECT_EQ(shard, expected);
      EXPECT_EQ(group.wire_bytes().reduce_scatter - before.reduce_scatter, 8 * count * (ranks - 1));
      group.all_reduce(std::span<const int64_t>(mine), std::span<int64_t>(all), false);
      EXPECT_EQ(all, sum);
      EXPECT_EQ(group.wire_bytes().all_reduce - before.all_reduce, 16 * count * (ranks - 1));
      group.all_reduce(std::span<const int64_t>(mine), std::span<int64_t>(mine), false);
      EXPECT_EQ(mine, sum) << "in place";
    }
  });
}

TEST_P(Collectives, AllReduceSumsInRankOrder) {
  with_group(GetParam(), [](Communicator& group) {
    for (const size_t count : sizes) {
      const std::vector<float> expected = sum_of_ranks(group.size(), count), in = values_of(group.rank(), count);

      std::vector<float> out(count, NAN);
      group.all_reduce(in, out, false);
      EXPECT_TRUE(same_bits(out, expected)) << count;

      std::vector<float> in_place = in;
      group.all_reduce(in_place, in_place, false);
      EXPECT_TRUE(same_bits(in_place, expected)) << "in place, " << count;

      std::vector<float> added = values_of(group.rank(), count, 7), expected_added = added;
      for (size_t i = 0; i < count; ++i) expected_added[i] += expected[i];
      group.all_reduce(in, added, true);
      EXPECT_TRUE(same_bits(added, expected_added)) << "accumulated, " << count;
    }
  });
}

TEST_P(Collectives, ReduceScatterThenAllGatherIsAllReduce) {
  with_group(GetParam(), [](Communicator& group) {
    const size_t count = 517, ranks = static_cast<size_t>(group.size());
    const std::vector<float> in = values_of(group.rank(), count * ranks);
    std::vector<float> shard(count), gathered(in.size()), reduced(in.size());
    group.reduce_scatter(in, shard, false);
    all_gather(group, shard, gathered);
    group.all_reduce(in, reduced, false);
    EXPECT_TRUE(same_bits(gathered, reduced));
  });
}

TEST_P(Collectives, DoublesSumPairwiseInRankOrder) {
  with_group(GetParam(), [](Communicator& group) {
    for (const size_t count : {0UL, 1UL, 3UL, 5000UL}) {
      std::vector<double> values(count), expected(count);
      for (size_t i = 0; i < count; ++i) {
        values[i] = std::sqrt(static_cast<double>(i + 1)) / (group.rank() + 3);
        std::vector<double> terms;
        for (int rank = 0; rank < group.size(); ++rank)
          terms.push_back(std::sqrt(static_cast<double>(i + 1)) / (rank + 3));
        for (; terms.size() > 1; terms.resize((terms.size() + 1) / 2))
          for (size_t k = 0; k < terms.size(); k += 2)
            terms[k / 2] = k + 1 < terms.size() ? terms[k] + terms[k + 1] : terms[k];
        expected[i] = terms[0];
      }
      group.all_reduce(values);
      EXPECT_EQ(values, expected);
    }
  });
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  with_group(GetParam(), [](Communicator& group) {
    for (int root = 0; root < group.size(); ++root) {
      for (const size_t count : sizes) {
        std::vector<std::byte> bytes(count, static_cast<std::byte>(group.rank()));
        group.broadcast(bytes, root);
        EXPECT_THAT(bytes, Each(static_cast<std::byte>(root)));
      }
    }
  });
}

TEST_P(Collectives, NobodyPassesABarrierBeforeAllCame) {
  std::atomic<int> came = 0;
  with_group(GetParam(), [&](Communicator& group) {
    for (int round = 1; round <= 50; ++round) {
      came.fetch_add(1);
      group.barrier();
      EXPECT_GE(came.load(), round * group.size());
    }
  });
}

TEST_P(Collectives, BytesOnTheWireAreTheClosedForm) {
  with_group(GetParam(), [](Communicator& group) {
    const uint64_t n = static_cast<uint64_t>(group.size()), elements = 60 * n;
    std::vector<float> whole(elements), shard(60);
    all_gather(group, shard, whole);
    group.reduce_scatter(whole, shard, false);
    group.reduce_scatter(whole, shard, true);
    group.all_reduce(whole, whole, false);
    std::vector<double> scalars(n);
    group.all_reduce(scalars);
    std::vector<std::byte> bytes(12);
    group.broadcast(bytes, 0);
    const uint64_t sharded = elements * 4 * (n - 1) / n;
    const WireBytes expected{.all_gather = sharded,
                             .reduce_scatter = 2 * sharded,
                             .all_reduce = 2 * sharded,
                             .scalar_all_reduce = 2 * 8 * (n - 1),
                             .broadcast = group.rank() == 0 ? 12 * (n - 1) : 0};
    EXPECT_EQ(group.wire_bytes(), expected);
    EXPECT_EQ(group.wire_bytes().total(), 5 * sharded + expected.scalar_all_reduce + expected.broadcast);
  });
}

TEST(WireBytes, CountsThePaddingOfAnOddSize) {
  EXPECT_EQ(sharded_wire_bytes(10, 4, 4), 3U * 3 * 4);
  EXPECT_EQ(sharded_wire_bytes(10, 1, 4), 0U);
  EXPECT_EQ(sharded_wire_bytes(0, 4, 4), 0U);
}

TEST(Groups, OfAPipelineAndOfReplicasAtOnce) {
  constexpr int pp = 3, dp = 4;
  LocalWorld world(pp * dp);
  run_ranks(world, [&](int rank) {
    const int stage = rank / dp, replica = rank % dp;
    std::vector<int> replicas, stages;
    for (int i = 0; i < dp; ++i) replicas.push_back(stage * dp + i);
    for (int i = pp - 1; i >= 0; --i)
      stages.push_back(i * dp + replica);  // the place in the list counts, not the number
    const auto data = world.join("replicas", replicas, rank);
    const auto pipeline = world.join("stages", stages, rank);
    EXPECT_EQ(data->rank(), replica);
    EXPECT_EQ(data->size(), dp);
    EXPECT_EQ(pipeline->rank(), pp - 1 - stage);
    EXPECT_EQ(pipeline->size(), pp);
    for (int round = 0; round < 20; ++round) {
      std::vector<double> sum{static_cast<double>(rank)};
      data->all_reduce(sum);
      EXPECT_EQ(sum[0], dp * stage * dp + 6);
      pipeline->all_reduce(sum);
      EXPECT_EQ(sum[0], dp * dp * 3 + pp * 6);
    }
  });
}

TEST(Groups, OneRankUsesSeveralFromSeveralThreads) {
  static constexpr int ranks = 3, groups = 4;
  LocalWorld world(ranks);
  run_ranks(world, [&](int rank) {
    std::vector<std::thread> lanes;
    for (int lane = 0; lane < groups; ++lane) {
      lanes.emplace_back([&world, rank, lane] {
        const auto group = world.join("lane " + std::to_string(lane), all_ranks(ranks), rank);
        for (uint32_t round = 1; round <= 30; ++round) {
          const uint32_t seed = round * groups + static_cast<uint32_t>(lane);
          std::vector<float> values = values_of(rank, 999, seed);
          group->all_reduce(values, values, false);
          EXPECT_TRUE(same_bits(values, sum_of_ranks(ranks, 999, seed)));
        }
      });
    }
    for (std::thread& lane : lanes) lane.join();
  });
}

// Every rank runs the same random list of collectives over random groups, with random delays.
TEST(Groups, RandomInterleavingsGiveTheSameBits) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr int ranks = 6;
  LocalWorld world(ranks);
  run_ranks(world, [&](int rank) {
    std::mt19937 shared(seed), own(seed + static_cast<uint32_t>(rank) + 1);
    std::vector<std::vector<int>> members(5);
    std::vector<std::unique_ptr<Communicator>> groups;
    for (size_t g = 0; g < members.size(); ++g) {
      std::vector<int> order = all_ranks(ranks);
      std::ranges::shuffle(order, shared);
      order.resize(1 + shared() % ranks);
      members[g] = order;
      const bool member = std::ranges::count(order, rank) > 0;
      groups.push_back(member ? world.join("group " + std::to_string(g), order, rank) : nullptr);
    }
    for (uint32_t step = 0; step < 200; ++step) {
      const size_t g = shared() % members.size(), count = shared() % 3000;
      const bool reduce = shared() % 2 == 0;
      if (!groups[g]) continue;
      if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
      const size_t size = members[g].size();
      std::vector<std::vector<float>> terms;
      for (size_t i = 0; i < size; ++i) terms.push_back(values_of(members[g][i], count * size, step));
      const std::vector<float> expected = pairwise_sum(terms);
      const std::vector<float> in = values_of(rank, count * size, step);
      std::vector<float> out(count * size);
      if (reduce) {
        groups[g]->all_reduce(in, out, false);
      } else {
        std::vector<float> shard(count);
        groups[g]->reduce_scatter(in, shard, false);
        all_gather(*groups[g], shard, out);
      }
      ASSERT_TRUE(same_bits(out, expected)) << "step " << step;
    }
  });
}

TEST(Groups, RefuseWhatCannotBeAGroup) {
  LocalWorld world(4);
  const auto refuses = [&](std::vector<int> members, int rank, const char* text) {
    EXPECT_THAT([&] { (void)world.join("g", members, rank); }, testing::ThrowsMessage<InvariantError>(HasSubstr(text)));
  };
  refuses({0, 1}, 2, "world rank 2 joins group 'g' of 0 1, and is no member");
  refuses({0, 4}, 0, "no world rank 4 of 4");
  refuses({0, 1, 0}, 0, "world rank 0 is listed twice");
  const auto end = world.join("g", {0, 1}, 0);
  refuses({0, 1}, 0, "world rank 0 joins group 'g' twice");
  refuses({1, 2}, 1, "group 'g' is 0 1 for one member and 1 2 for another");
  EXPECT_EQ(world.join("g", {2, 3}, 3)->rank(), 1);  // apart: another stage's group may have the same name
}

}  // namespace
}  // namespace shardpipe
