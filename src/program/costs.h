// How long each action takes, as data: what simulate() prices a program with, and what sleeping machines sleep. Lanes
// of a rank do not slow each other down in it (a transfer that takes memory bandwidth from arithmetic): figures are
// those of lanes that share nothing.
#pragma once
#include <span>
#include <vector>

#include "model/shape/model.h"
#include "program/program.h"

namespace shardpipe {

// Of one block over one micro-batch. A whole backward takes both its parts.
struct BlockSeconds {
  double forward = 0, backward_input = 0, backward_weight = 0;
  double recompute = 0;  // where the program has it computed again
};

// What grows with bytes: a fixed part, then a rate.
struct BytesCost {
  double fixed_seconds = 0, seconds_per_byte = 0;
  double seconds(double bytes) const { return fixed_seconds + bytes * seconds_per_byte; }
};

// Ranks share a node of fast links, and each has a slower link of its own to other nodes.
struct Nodes {
  std::vector<uint32_t> members;  // of each group of the program, how many share a node; empty: all ranks are in one
  BytesCost message, collective;  // as in CostModel, of one rank's link to another node
  double per_node_seconds = 0;    // what a collective takes longer for each node after the first
};

// For Nodes::members: of each group, how many of its members share a node where they are the fewest. World ranks
// (pipeline rank × dp + replica) fill one node of `ranks_in_node` >= 1 after the other.
std::vector<uint32_t> members_in_a_node(const Program&, uint64_t dp, uint64_t replicate, uint64_t ranks_in_node);

struct CostModel {
  std::vector<BlockSeconds> blocks;  // of every block, or one for all
  BytesCost message;                 // from one pipeline rank to the next: latency, 1 / bandwidth
  BytesCost collective;    // of the bytes that a ring sends from each rank: (N-1)/N of the array, twice for an
                           // all-reduce. Nothing where a rank is alone
  BytesCost update;        // norm, clip, optimizer, local sum of tied gradients: of the bytes that they use
  BytesCost store{};       // of the bytes that a Fetch or an Offload copies
  uint64_t dp = 1;         // replicas that the program was compiled for
  uint64_t replicate = 1;  // and copies of its shard groups
  Nodes nodes{};           // message and collective above are those inside a node
};

// Of an action of this pipeline rank, from when it and all whom it speaks to have begun. InvariantError where `blocks`
// has none for its block.
double seconds_of(const CostModel&, const Program&, uint16_t pipeline_rank, const Action&);

// A forward at this rate, and each part of the backward the same (forward_flops: a backward is twice a forward).
std::vector<BlockSeconds> block_seconds_at(const Model&, MicroBatchShape, double flops_per_second,
                                           std::span<const Recompute> of_blocks = {});
// Of a model whose blocks of one kind take a fixed time.
std::vector<BlockSeconds> fixed_block_seconds(const Model&, const BlockSeconds& embedding, const BlockSeconds& layer,
                                              const BlockSeconds& head);

}  // namespace shardpipe
