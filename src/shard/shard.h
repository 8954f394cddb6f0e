// Which bytes of a flat parameter group a rank owns, and what stays sharded between uses: ZeRO (Rajbhandari et al.,
// arXiv:1910.02054) as arithmetic. Every shard of a group has the same size, so that replicas share one program; the
// last ones are padded.
#pragma once
#include <cstdint>
#include <string_view>

namespace shardpipe {

// When gradients cross the data-parallel group: after every micro-batch, or once a step.
enum class ReduceEvery : uint8_t { Micro, Step };

// What a rank keeps only its shard of, between uses. This is all that the passes know of a ZeRO stage.
struct Residency {
  bool parameters_sharded = false;  // gathered before use, and dropped after it
  bool gradients_sharded =
      false;  // the accumulator is a shard: each micro-batch's gradient is reduce-scattered into it
  bool optimizer_sharded = false;  // states and the update itself; otherwise every replica updates everything
};

// ZeRO 1 that reduces every micro-batch accumulates shards, and ZeRO 2 that reduces once a step keeps whole gradients:
// for the accumulator it is the cadence that decides. Requires 0 <= zero_stage <= 3.
Residency residency(int zero_stage, ReduceEvery);

// A flat group of `elements` cut for `ranks` ranks.
struct Shards {
  uint64_t elements;  // without padding
  uint64_t ranks;
  uint64_t shard_elements;  // of every rank: ceil(elements / ranks), or, of replicated ones, a multiple of `replicas`
  uint64_t padded_elements() const { return shard_elements * ranks; }
};
// Of groups that are replicated, each shard is as long as `replicas` shards of all their ranks together.
Shards shards(uint64_t elements, uint64_t ranks, uint64_t replicas = 1);

struct Range {
  uint64_t begin, end;
  uint64_t size() const { return end - begin; }
};
Range owned(const Shards&, uint64_t rank);  // without padding; may be empty

}  // namespace shardpipe
