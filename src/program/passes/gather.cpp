// Sharded parameters are gathered by an Unshard before each action that reads them (Rajbhandari et al.,
// arXiv:1910.02054, stage 3; Zhao et al., FSDP, arXiv:2304.11277). Each gather makes a new copy, which ends at its last
// reader: dropping it is not an action. Told to hold it after the forward, all actions of the step read one copy. A
// backward shares the copy of the Recompute just before it.
#include <fmt/format.h>

#include <utility>

#include "program/compile.h"
#include "program/edit.h"

namespace shardpipe {

Program pass_gather(Program program, const StepShape& shape) {
  for (uint16_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    if (!shape.residency[r].parameters_sharded) continue;
    RankProgram& rank = program.by_pipeline_rank[r];
    const uint16_t group =
        group_index(program, {.name = fmt::format("gather {}", r), .pipeline_ranks = {r}, .replicas = shape.sharing()});
    RankEditor edit(rank);
    std::vector<uint16_t> copies(shape.model->groups.size(), 0);
    std::vector<const Action*> newest_reader(shape.model->groups.size(), nullptr);
    const std::vector<Action> actions = edit.take_actions();
    for (const Action& action : actions) {
      for (uint32_t u = action.first_use; u < action.first_use + action.use_count; ++u) {
        const Buffer whole = rank.buffers[rank.uses[u].buffer];
        if (whole.role != Role::Parameters) continue;
        uint16_t& copy = copies[whole.index];
        const Action* const before = std::exchange(newest_reader[whole.index], &action);
        const bool shares = before != nullptr && before->kind == Kind::Recompute && before->index == action.index &&
                            before->micro_batch == action.micro_batch;
        const bool gather = copy == 0 || (shape.layout.reshards(r) && !shares);
        if (gather) ++copy;
        Buffer gathered = whole;
        gathered.resident = false;
        gathered.copy = copy;
        rank.uses[u].buffer = edit.buffer(gathered);
        if (!gather) continue;
        const uint32_t shard =
            edit.buffer({.role = Role::Shard,
                         .index = whole.index,
                         .resident = true,
                         .bytes = shape.shards_of(whole.index).shard_elements * shape.parameter_bytes()});
        edit.append({.kind = Kind::Unshard, .lane = Lane::Gather, .index = whole.index, .group = group},
                    {{shard, Access::Read}, {rank.uses[u].buffer, Access::Write}});
      }
      edit.append(action);
    }
  }
  return program;
}

}  // namespace shardpipe
