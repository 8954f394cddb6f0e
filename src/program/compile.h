// Layout -> Program, by passes: each a pure function in a file of its own under passes/, each one idea. `passes()` is
// the table of contents. No pass writes a wait or an address: the last two derive them from what the actions read and
// write.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "layout/layout.h"
#include "model/shape/model.h"
#include "program/program.h"
#include "schedules/schedule.h"
#include "shard/shard.h"

namespace shardpipe {

// All that the passes read. Made by `step_shape` from a layout without problems.
struct StepShape {
  const Model* model;  // outlives the shape
  Layout layout;
  Schedule schedule;
  MicroBatchShape micro_batch;
  std::vector<Residency> residency;       // of each pipeline rank
  std::vector<uint16_t> first_block;      // of each chunk; one more at the end: the number of blocks
  uint64_t optimizer_states_per_element;  // 2 for AdamW, 0 for SGD
  std::vector<Recompute> recompute;       // of each block
  Offload offload{};
  bool training = true;               // else an evaluation: forwards alone, without dropout
  const Program* resident = nullptr;  // place resident buffers where this program has them

  uint16_t blocks() const { return static_cast<uint16_t>(model->blocks.size()); }
  uint64_t parameter_bytes() const { return bytes_of(micro_batch.dtype); }  // of one, as blocks read it
  bool has_masters() const { return micro_batch.dtype != DType::Float32; }
  uint64_t gradient_bytes() const { return layout.reproducible ? sizeof(int64_t) : sizeof(float); }  // as summed
  // What is added up in one element of a gradient, at most.
  int64_t contributions() const { return layout.micro_batches() * layout.dp * (model->config.tied_embeddings ? 2 : 1); }
  bool scales_loss() const { return micro_batch.dtype == DType::Float16; }
  Shards shards_of(uint16_t group) const {
    return shards(model->groups[group].elements, layout.shard_group(), layout.replicate);
  }
  // The finest cut of it: of a shard, a slice for each copy.
  Shards slices_of(uint16_t group) const { return shards(model->groups[group].elements, layout.dp); }
  uint16_t shard_index(uint16_t replica) const { return static_cast<uint16_t>(replica % layout.shard_group()); }
  uint16_t copy_index(uint16_t replica) const { return static_cast<uint16_t>(replica / layout.shard_group()); }
  Replicas sharing() const { return layout.replicate == 1 ? Replicas::All : Replicas::ShardGroup; }
};
StepShape step_shape(const Model&, const Layout&, uint64_t optimizer_states_per_element);

// The same layout without backwards: losses of held-out text, from the parameters that `training` holds, in its arena.
StepShape evaluation_shape(const StepShape& training_shape, const Program& training);

// The blocks that a cell runs, in their order: forwards ascending, backwards descending. The embedding has no input
// gradient, so the input part of a split backward leaves it out.
std::vector<uint16_t> blocks_of_pass(const StepShape&, const Cell&);

struct CompilerPass {
  std::string_view name;
  Program (*run)(Program, const StepShape&);
};
std::span<const CompilerPass> passes();

// Runs every pass, then check(): InvariantError with its findings if one of ours is broken.
Program compile(const StepShape&);

// The passes, in their order.
Program pass_blocks(Program, const StepShape&);
Program pass_transfers(Program, const StepShape&);
Program pass_recompute(Program, const StepShape&);
Program pass_gather(Program, const StepShape&);
Program pass_exact(Program, const StepShape&);
Program pass_reduce(Program, const StepShape&);
Program pass_tied(Program, const StepShape&);
Program pass_round(Program, const StepShape&);
Program pass_optimizer(Program, const StepShape&);
Program pass_offload(Program, const StepShape&);
Program pass_prefetch(Program, const StepShape&);
Program pass_place_buffers(Program, const StepShape&);
Program pass_order(Program, const StepShape&);

}  // namespace shardpipe
