// Gradients cross the data-parallel group after the backward that completes them: of each micro-batch, or of the step.
//
// Every micro-batch: the backward writes a gradient of its own, which is reduced into the accumulator and ends. Once a
// step: the backwards accumulate, the last one's sum is reduced where it lies. Reduce-scatter where the optimizer is
// sharded, else all-reduce. Where shard groups are copies of each other (HSDP), what a group has scattered is then
// all-reduced across the groups. Told to reduce in 16 bits, each replica rounds its gradient before it is summed; sums
// are fp32, and so is what then crosses the groups. Told to be reproducible, what crosses are exact sums in int64,
// which the AddExact after each backward completes.
#include <fmt/format.h>

#include "program/compile.h"
#include "program/edit.h"

namespace shardpipe {
namespace {

// What a Reduce of this gradient writes besides: the rounded copy that it sends.
std::vector<Use> wire_of(RankEditor& edit, const StepShape& shape, const Buffer& gradient) {
  if (shape.layout.reduce_dtype == DType::Float32) return {};
  Buffer wire = gradient;
  wire.role = Role::WireGradient;
  wire.bytes = gradient.bytes / sizeof(float) * bytes_of(shape.layout.reduce_dtype);
  return {{edit.buffer(wire), Access::Write}};
}

}  // namespace

Program pass_reduce(Program program, const StepShape& shape) {
  const auto last = static_cast<uint16_t>(shape.layout.micro_batches() - 1);
  const bool exact = shape.layout.reproducible;
  const uint64_t element_bytes = shape.gradient_bytes();
  const bool every_micro_batch = shape.layout.reduce_every == ReduceEvery::Micro;
  for (uint16_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    RankProgram& rank = program.by_pipeline_rank[r];
    const Extent extent = shape.residency[r].optimizer_sharded ? Extent::Owned : Extent::Whole;
    const bool shards = shape.residency[r].optimizer_sharded;
    const uint16_t group = group_index(program, {.name = fmt::format("reduce {}", r),
                                                 .pipeline_ranks = {r},
                                                 .replicas = shards ? shape.sharing() : Replicas::All});
    const bool has_copies = shards && shape.layout.replicate > 1;
    const uint16_t across = has_copies ? group_index(program, {.name = fmt::format("across {}", r),
                                                               .pipeline_ranks = {r},
                                                               .replicas = Replicas::AcrossGroups})
                                       : none;
    RankEditor edit(rank);
    for (const Action& action : edit.take_actions()) {
      edit.append(action);
      if (exact ? action.kind != Kind::AddExact : !gives_gradients(action.kind)) continue;
      for (uint32_t u = action.first_use; u < action.first_use + action.use_count; ++u) {
        const uint32_t accumulator = rank.uses[u].buffer;
        const Buffer whole = rank.buffers[accumulator];
        if (whole.role != (exact ? Role::ExactGradient : Role::Gradient)) continue;
        Action reduce{.kind = Kind::Reduce,
                      .lane = Lane::Reduce,
                      .extent = extent,
                      .index = whole.index,
                      .micro_batch = every_micro_batch ? action.micro_batch : none,
                      .group = group};
        if (every_micro_batch) {
          Buffer own = whole;
          own.micro_batch = action.micro_batch;
          own.bytes = shape.shards_of(whole.index).padded_elements() * element_bytes;
          rank.uses[u] = {edit.buffer(own), Access::Write};
          if (shape.residency[r].gradients_sharded)
            rank.buffers[accumulator].bytes = shape.shards_of(whole.index).shard_elements * element_bytes;
          const Use sum{accumulator, action.micro_batch == 0 ? Access::Write : Access::Add};
          std::vector<Use> uses = wire_of(edit, shape, own);
          uses.insert(uses.begin(), {rank.uses[u].buffer, Access::Read});
          if (!has_copies) {
            uses.push_back(sum);
            edit.append(reduce, uses);
            continue;
          }
          Buffer partial = own;
          partial.role = Role::PartialGradient;
          partial.bytes = shape.shards_of(whole.index).shard_elements * element_bytes;
          const uint32_t of_group = edit.buffer(partial);
          uses.push_back({of_group, Access::Write});
          edit.append(reduce, uses);
          reduce.group = across;
          edit.append(reduce, {{of_group, Access::Read}, sum});
        } else if (action.micro_batch == last) {
          std::vector<Use> uses = wire_of(edit, shape, whole);
          uses.insert(uses.begin(), {accumulator, Access::Add});
          edit.append(reduce, uses);
          reduce.group = across;
          if (has_copies) edit.append(reduce, {{accumulator, Access::Add}});
        }
      }
    }
  }
  return program;
}

}  // namespace shardpipe
