// What a person asks for: how a model and a batch are spread over ranks. Its rules, and the errors they give.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/shape/model.h"
#include "schedules/schedule.h"
#include "shard/shard.h"

namespace shardpipe {

struct Layout {
  int64_t pp = 1;                    // pipeline ranks
  int64_t dp = 1;                    // data-parallel replicas of each pipeline rank
  int64_t replicate = 1;             // groups of dp / replicate neighbours shard, each a copy of the others (HSDP)
  int zero = 0;                      // ZeRO stage
  std::vector<int> zero_of_ranks{};  // of each pipeline rank, where they differ; then `zero` counts for nothing
  std::string schedule = "1f1b";     // of generators(), or the name of the file that own_schedule was read from
  std::optional<Schedule> own_schedule{};  // one without problems_of(Schedule)
  PassCosts pass_costs{};                  // of a chunk, where they are known: what schedules place weight parts by
  int64_t chunks_per_rank = 0;             // stages that a pipeline rank holds; 0: as many as the schedule usually has
  int64_t micro_batch_size = 1;            // sequences
  int64_t global_batch_size = 1;           // sequences a step, over all replicas
  ReduceEvery reduce_every = ReduceEvery::Step;
  DType reduce_dtype = DType::Float32;  // what replicas round their gradients to before they are summed, in fp32
  bool reproducible = false;  // gradients are summed exactly, so that bits do not depend on who adds what, or when
  bool reshard_after_forward =
      true;  // ZeRO 3: gather again for the backward (true), or hold the gathered copy for the step
  std::vector<bool> reshard_of_ranks{};  // of each pipeline rank, where they differ
  DType precision = DType::Float32;      // of activations and of the parameters that blocks compute with
  std::string recompute = "none";        // none, full, selective, every:N, blocks:LIST: see recompute_of_blocks
  std::string offload = "none";          // none, or of optimizer, params, activations some: see offload_of
  int64_t offload_piece = 1 << 20;       // elements of optimizer state that are in the arena at once
  std::vector<int64_t> stages{};  // blocks in each stage (pp × chunks a rank of them); empty: balanced when compiled

  int64_t ranks() const { return pp * dp; }
  int64_t shard_group() const { return dp / replicate; }  // replicas that share one copy
  int zero_of(size_t pipeline_rank) const { return zero_of_ranks.empty() ? zero : zero_of_ranks[pipeline_rank]; }
  bool reshards(size_t pipeline_rank) const {
    return reshard_of_ranks.empty() ? reshard_after_forward : reshard_of_ranks[pipeline_rank];
  }
  int highest_zero() const { return zero_of_ranks.empty() ? zero : *std::ranges::max_element(zero_of_ranks); }
  int64_t chunks() const;                                                                // stages of all ranks
  int64_t micro_batches() const { return global_batch_size / (micro_batch_size * dp); }  // of one rank
  std::string zero_text() const;  // "3" or "3,3,2,1", as --zero has it
  bool operator==(const Layout&) const = default;
};

ReduceEvery default_reduce_every(int zero);  // ZeRO 2 and 3 reduce every micro-batch, 0 and 1 once a step

// Contiguous stages whose largest forward cost is as small as it can be (an exact search over cut points); of those,
// the one whose stages are the most even. Requires 1 <= count <= number of blocks.
std::vector<int64_t> balanced_stages(const Model&, int64_t count, MicroBatchShape);

// What each block computes again in its backward:
//   none       nothing
//   full       every layer, all but its input
//   selective  every layer, its attention core alone
//   every:N    every N-th layer in full, the first of the model among them
//   blocks:A,B-C   these blocks in full, as they are numbered: 0 is the embedding, the last is the head
// InputError "--recompute: found …, allowed: …".
std::vector<Recompute> recompute_of_blocks(const std::string& rule, const Model&);

// What is kept in a rank's store, host memory or a file, while nothing works on it.
struct Offload {
  bool optimizer = false;    // its states, and fp32 masters
  bool parameters = false;   // as they are kept between uses: shards, or whole
  bool activations = false;  // what a forward leaves for its backward
};
// "none", or "optimizer", "params" and "activations" with commas between them. InputError "--offload: found …,
// allowed: …".
Offload offload_of(const std::string& list);

// Every rule that does not hold, a line each: names the flags, the numbers found, and the nearest right values. A model
// without blocks is one that is wrong itself: rules that need its blocks are left out. No stages are no
// problem: they are balanced.
std::vector<std::string> problems_of(const Layout&, const Model&);

}  // namespace shardpipe
