// What a rank of a program sends in one step, and copies from and to its store: bytes by kind, from the program alone.
#pragma once
#include <cstdint>

#include "program/program.h"

namespace shardpipe {

// Bytes that one rank sends. A collective over N ranks is counted at the least that any algorithm sends a rank: an
// all-gather or a reduce-scatter of B bytes (padding included) B(N-1)/N, an all-reduce both. A transport that sends
// more pays for it itself.
struct Traffic {
  uint64_t send = 0;                    // activations and their gradients, between stages
  uint64_t all_gather = 0;              // parameters
  uint64_t reduce_scatter = 0;          // gradients
  uint64_t all_reduce = 0;              // gradients
  uint64_t tied = 0;                    // all-reduce of a tied gradient between the ranks of its two uses
  uint64_t scalars = 0;                 // all-reduce of the slots: squares of gradients and losses
  uint64_t fetched = 0, offloaded = 0;  // between the store and the arena: not sent
  uint64_t total() const { return send + all_gather + reduce_scatter + all_reduce + tied + scalars; }  // sent
  bool operator==(const Traffic&) const = default;
};

// Of each data-parallel replica of this pipeline rank. Requires pipeline_rank in range and dp >= 1, the size that the
// program was compiled for.
Traffic traffic(const Program&, uint16_t pipeline_rank, uint64_t dp, uint64_t replicate = 1);

// What one action of it sends.
uint64_t sent_bytes(const Program&, uint16_t pipeline_rank, const Action&, uint64_t dp, uint64_t replicate = 1);

}  // namespace shardpipe
