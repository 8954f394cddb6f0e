// Told to be reproducible: once an exact sum holds all micro-batches, replicas and uses, it is rounded, once, to the
// fp32 gradient that the norm and the optimizer read: whole, or this rank's shard alone.
#include "program/compile.h"
#include "program/edit.h"
#include "program/loss_scale.h"

namespace shardpipe {

Program pass_round(Program program, const StepShape& shape) {
  if (!shape.layout.reproducible) return program;
  for (size_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    RankProgram& rank = program.by_pipeline_rank[r];
    const Extent extent = shape.residency[r].optimizer_sharded ? Extent::Owned : Extent::Whole;
    RankEditor edit(rank);
    for (uint16_t g = 0; g < shape.model->groups.size(); ++g)
      for (const uint16_t use : {uint16_t{0}, uint16_t{1}}) {
        if (!edit.has(Role::ExactGradient, g, none, use)) continue;
        const Shards shards = shape.shards_of(g);
        const uint32_t gradient = edit.existing(Role::Gradient, g, none, use);
        rank.buffers[gradient].bytes =
            (extent == Extent::Owned ? shards.shard_elements : shards.padded_elements()) * sizeof(float);
        std::vector<Use> uses{{edit.existing(Role::ExactGradient, g, none, use), Access::Read}};
        if (shape.scales_loss()) uses.push_back({edit.existing(Role::LossScale, none), Access::Read});
        uses.push_back({gradient, Access::Write});
        edit.append({.kind = Kind::Round, .extent = extent, .index = g}, uses);
        break;  // the sum of both uses is in the first
      }
  }
  return program;
}

}  // namespace shardpipe
