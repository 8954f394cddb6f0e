// The end of a step: squares of the gradients and losses into this rank's slots, one sum of the slots over all ranks,
// the clip factor (and the next loss scale), an update of each parameter group, and where whole parameters are kept but
// updated in shards, an Unshard in place. Where blocks compute in 16 bits the update is of fp32 masters, whose rounded
// values it stores as parameters.
#include <fmt/format.h>

#include "program/compile.h"
#include "program/edit.h"
#include "program/loss_scale.h"
#include "program/slots.h"

namespace shardpipe {

Program pass_optimizer(Program program, const StepShape& shape) {
  const Model& model = *shape.model;
  const SlotShape slot_shape{model.groups.size(), static_cast<uint64_t>(shape.layout.dp),
                             static_cast<uint64_t>(shape.layout.micro_batches()), shape.layout.reproducible};
  Group everyone{.name = "world", .pipeline_ranks = {}, .replicas = Replicas::All};
  for (uint16_t r = 0; r < program.by_pipeline_rank.size(); ++r) everyone.pipeline_ranks.push_back(r);
  const uint16_t world = group_index(program, everyone);
  const uint16_t head_rank = shape.schedule.rank_of_chunk.back();
  std::vector<bool> counted(model.groups.size(), false);  // a tied group has copies on two ranks, and one norm

  for (uint16_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    RankEditor edit(program.by_pipeline_rank[r]);
    const Residency& residency = shape.residency[r];
    const Extent extent = residency.optimizer_sharded ? Extent::Owned : Extent::Whole;
    // The groups that live here, each with the gradient that holds its sum.
    std::vector<std::pair<uint16_t, uint32_t>> updated;
    for (uint16_t g = 0; g < model.groups.size(); ++g)
      for (const uint16_t use : {uint16_t{0}, uint16_t{1}})
        if (edit.has(Role::Gradient, g, none, use)) {
          updated.emplace_back(g, edit.existing(Role::Gradient, g, none, use));
          break;
        }

    const uint32_t slots = edit.buffer({.role = Role::Slots, .bytes = slot_shape.count() * sizeof(double)});
    const uint32_t scalars = edit.buffer({.role = Role::Scalars, .resident = true, .bytes = sizeof(StepScalars)});
    std::vector<Use> uses{{slots, Access::Write}};
    for (const auto& [g, gradient] : updated)
      if (!counted[g]) {
        counted[g] = true;
        uses.push_back({gradient, Access::Read});
      }
    if (edit.has(Role::Overflows, none)) {
      uses.push_back({edit.existing(Role::Overflows, none), Access::Read});
      if (shape.scales_loss()) uses.push_back({edit.existing(Role::LossScale, none), Access::Read});
    }
    if (r == head_rank)
      for (uint16_t m = 0; m < slot_shape.micro_batches; ++m)
        uses.push_back({edit.existing(Role::Loss, none, m), Access::Read});
    edit.append({.kind = Kind::GradientNorm, .lane = Lane::Compute, .extent = extent}, uses);
    edit.append({.kind = Kind::Reduce, .lane = Lane::Reduce, .extent = Extent::Whole, .group = world},
                {{slots, Access::Add}});
    uses = {{slots, Access::Read}, {scalars, Access::Write}};
    if (shape.scales_loss() && !updated.empty())
      uses.push_back(
          {edit.buffer({.role = Role::LossScale, .resident = true, .bytes = sizeof(LossScale)}), Access::Add});
    edit.append({.kind = Kind::Clip, .lane = Lane::Compute}, uses);

    for (const auto& [g, gradient] : updated) {
      const Shards shards = shape.shards_of(g);
      const uint64_t updated_elements = residency.optimizer_sharded ? shards.shard_elements : shards.padded_elements();
      const uint32_t parameters =
          residency.parameters_sharded ? edit.existing(Role::Shard, g) : edit.existing(Role::Parameters, g);
      uses = {{scalars, Access::Read}, {gradient, Access::Read}, {parameters, Access::Add}};
      if (shape.has_masters())
        uses.push_back(
            {edit.buffer(
                 {.role = Role::Master, .index = g, .resident = true, .bytes = updated_elements * sizeof(float)}),
             Access::Add});
      if (const uint64_t states = shape.optimizer_states_per_element; states > 0)
        uses.push_back({edit.buffer({.role = Role::OptimizerState,
                                     .index = g,
                                     .resident = true,
                                     .bytes = states * updated_elements * sizeof(float)}),
                        Access::Add});
      edit.append({.kind = Kind::OptimizerStep, .lane = Lane::Compute, .extent = extent, .index = g}, uses);
      if (!residency.optimizer_sharded || residency.parameters_sharded) continue;
      // At once: it runs beside the next update.
      const uint16_t group = group_index(
          program, {.name = fmt::format("gather {}", r), .pipeline_ranks = {r}, .replicas = shape.sharing()});
      edit.append({.kind = Kind::Unshard, .lane = Lane::Gather, .index = g, .group = group},
                  {{parameters, Access::Add}});
    }
  }
  return program;
}

}  // namespace shardpipe
