#include <fmt/format.h>

#include <algorithm>

#include "program/check_rules.h"
#include "program/text.h"

namespace shardpipe {

std::string place(const Program& program, size_t rank, size_t action) {
  const RankProgram& p = program.by_pipeline_rank[rank];
  return fmt::format("rank {}, action {}: {}", rank, action, describe(p, p.actions[action]));
}

void check_structure(const Program& program, std::vector<Finding>& findings) {
  const size_t ranks = program.by_pipeline_rank.size();
  for (const Group& group : program.groups) {
    if (group.pipeline_ranks.empty()) findings.push_back({"a group has members", group.name});
    for (const uint16_t member : group.pipeline_ranks)
      if (member >= ranks)
        findings.push_back(
            {"a group's members are ranks", fmt::format("{}: rank {} of {}", group.name, member, ranks)});
  }
  for (size_t r = 0; r < ranks; ++r) {
    const RankProgram& rank = program.by_pipeline_rank[r];
    for (const Buffer& buffer : rank.buffers)
      if (const uint64_t end = buffer.stored ? rank.store_bytes : rank.arena_bytes;
          buffer.offset > end || buffer.bytes > end - buffer.offset)
        findings.push_back({"buffers lie in the arena, or in the store",
                            fmt::format("rank {}: {} ends at {}, its place at {}", r, name_of(buffer),
                                        buffer.offset + buffer.bytes, end)});
    for (size_t i = 0; i < rank.actions.size(); ++i) {
      const Action& action = rank.actions[i];
      const auto here = [&] { return fmt::format("rank {}, action {}: {}", r, i, name_of(action)); };
      if (uint64_t{action.first_use} + action.use_count > rank.uses.size() ||
          uint64_t{action.first_wait} + action.wait_count > rank.waits.size()) {
        findings.push_back({"uses and waits are in range", here()});
        continue;
      }
      for (const Use& use : uses_of(rank, action))
        if (use.buffer >= rank.buffers.size()) findings.push_back({"uses name buffers of the rank", here()});
      for (uint32_t w = 0; w < action.wait_count; ++w) {
        const uint32_t wait = rank.waits[action.first_wait + w];
        if (wait >= i || rank.actions[wait].lane == action.lane)
          findings.push_back(
              {"a wait is for an earlier action on another lane", fmt::format("{}, wait for {}", here(), wait)});
      }
      const bool of_block = is_compute(action.kind) || action.kind == Kind::Send || action.kind == Kind::Receive;
      const bool of_group = action.kind == Kind::Unshard || action.kind == Kind::SumTied ||
                            action.kind == Kind::AddExact || action.kind == Kind::Round ||
                            action.kind == Kind::OptimizerStep;
      const bool of_micro_batch = of_block || action.kind == Kind::AddExact;
      if (((of_block || of_group) && action.index == none) || (of_micro_batch && action.micro_batch == none))
        findings.push_back({"an action names its block and micro-batch, or its parameter group", here()});
      if ((action.kind == Kind::Fetch) != (action.lane == Lane::Fetch) ||
          (action.kind == Kind::Offload) != (action.lane == Lane::Offload))
        findings.push_back({"a fetch or an offload has its lane to itself", here()});
      const bool speaks = action.kind == Kind::Send || action.kind == Kind::Receive || action.kind == Kind::Unshard ||
                          action.kind == Kind::Reduce || (action.kind == Kind::SumTied && action.lane == Lane::Reduce);
      if (speaks != (action.group != none)) findings.push_back({"communication has a group, arithmetic none", here()});
      if (action.group == none) continue;
      if (action.group >= program.groups.size()) {
        findings.push_back({"actions name groups of the program", here()});
      } else {
        const auto& members = program.groups[action.group].pipeline_ranks;
        if (std::ranges::find(members, r) == members.end())
          findings.push_back({"a rank speaks only in its own groups", here()});
      }
    }
  }
}

}  // namespace shardpipe
