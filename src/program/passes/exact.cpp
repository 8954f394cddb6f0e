// Told to be reproducible: every backward writes the gradient of its micro-batch alone, which is then added to an exact
// sum (kernels/cpu/exact_sum.h). So no order of micro-batches, replicas or uses is left that could show in the bits.
// What was out of range is counted for the whole step, on each rank.
#include "program/compile.h"
#include "program/edit.h"
#include "program/loss_scale.h"

namespace shardpipe {

Program pass_exact(Program program, const StepShape& shape) {
  if (!shape.layout.reproducible) return program;
  for (RankProgram& rank : program.by_pipeline_rank) {
    RankEditor edit(rank);
    Access count = Access::Write;
    for (const Action& action : edit.take_actions()) {
      edit.append(action);
      if (!gives_gradients(action.kind)) continue;
      for (uint32_t u = action.first_use; u < action.first_use + action.use_count; ++u) {
        const Buffer gradient = rank.buffers[rank.uses[u].buffer];
        if (gradient.role != Role::Gradient) continue;
        Buffer own = gradient, sum = gradient;
        own.micro_batch = action.micro_batch;
        sum.role = Role::ExactGradient;
        sum.bytes = shape.shards_of(gradient.index).padded_elements() * shape.gradient_bytes();
        const Use added{edit.buffer(sum), rank.uses[u].access};
        rank.uses[u] = {edit.buffer(own), Access::Write};
        std::vector<Use> uses{{rank.uses[u].buffer, Access::Read}};
        if (shape.scales_loss())
          uses.push_back(
              {edit.buffer({.role = Role::LossScale, .resident = true, .bytes = sizeof(LossScale)}), Access::Read});
        uses.push_back(added);
        uses.push_back({edit.buffer({.role = Role::Overflows, .bytes = sizeof(int64_t)}), count});
        count = Access::Add;
        edit.append({.kind = Kind::AddExact, .index = gradient.index, .micro_batch = action.micro_batch}, uses);
      }
    }
  }
  return program;
}

}  // namespace shardpipe
