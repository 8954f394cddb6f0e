#include "shard/shard.h"

#include <algorithm>

#include "base/error.h"

namespace shardpipe {

Residency residency(int zero_stage, ReduceEvery reduce_every) {
  check_invariant(zero_stage >= 0 && zero_stage <= 3, "ZeRO stage {} is not 0, 1, 2 or 3", zero_stage);
  return {.parameters_sharded = zero_stage >= 3,
          .gradients_sharded = zero_stage >= 1 && reduce_every == ReduceEvery::Micro,
          .optimizer_sharded = zero_stage >= 1};
}

Shards shards(uint64_t elements, uint64_t ranks, uint64_t replicas) {
  check_invariant(ranks > 0 && replicas > 0, "a group of no ranks owns nothing");
  const uint64_t all = ranks * replicas;
  return {.elements = elements, .ranks = ranks, .shard_elements = (elements + all - 1) / all * replicas};
}

Range owned(const Shards& shards, uint64_t rank) {
  const uint64_t begin = std::min(shards.elements, rank * shards.shard_elements);
  return {begin, std::min(shards.elements, begin + shards.shard_elements)};
}

}  // namespace shardpipe
