// A tied embedding is used by the first and the last block, each with a gradient of its own. They are summed after the
// reduction, in the order embedding + head: where both uses lie on one rank there, else by an all-reduce of the two
// ranks, whichever comes first in the pipeline. The group is sharded by itself, so the shards line up wherever its uses
// lie.
#include "program/compile.h"
#include "program/edit.h"

namespace shardpipe {

Program pass_tied(Program program, const StepShape& shape) {
  if (!shape.model->config.tied_embeddings) return program;
  const uint16_t tied = shape.model->blocks.front().groups.back();
  const uint16_t first = shape.schedule.rank_of_chunk.front(), last = shape.schedule.rank_of_chunk.back();
  const Extent extent = shape.residency[first].optimizer_sharded ? Extent::Owned : Extent::Whole;  // and of the last
  Action sum{.kind = Kind::SumTied, .lane = Lane::Compute, .extent = extent, .index = tied};
  const Role role = shape.layout.reproducible ? Role::ExactGradient : Role::Gradient;
  if (!RankEditor(program.by_pipeline_rank[first]).has(role, tied)) return program;  // an evaluation
  if (first == last) {
    RankEditor edit(program.by_pipeline_rank[first]);
    edit.append(
        sum, {{edit.existing(role, tied, none, 0), Access::Add}, {edit.existing(role, tied, none, 1), Access::Read}});
    return program;
  }
  sum.lane = Lane::Reduce;
  sum.group = group_index(program, {.name = "tied", .pipeline_ranks = {first, last}, .replicas = Replicas::Own});
  for (const uint16_t use : {uint16_t{0}, uint16_t{1}}) {
    RankEditor edit(program.by_pipeline_rank[use == 0 ? first : last]);
    edit.append(sum, {{edit.existing(role, tied, none, use), Access::Add}});
  }
  return program;
}

}  // namespace shardpipe
