// Who meets whom is decided by the order of each group's actions, so all members must hold the same list: a send
// against a receive of the same buffer, or one collective of one parameter group with the same bytes.
#include <fmt/format.h>

#include <set>

#include "program/check_rules.h"
#include "program/text.h"

namespace shardpipe {
namespace {

// The actions of one rank in one group, in issue order.
std::vector<uint32_t> actions_in(const RankProgram& rank, uint16_t group) {
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < rank.actions.size(); ++i)
    if (rank.actions[i].group == group) found.push_back(i);
  return found;
}

uint64_t bytes_of(const RankProgram& rank, const Action& action) {
  uint64_t bytes = 0;
  for (const Use& use : uses_of(rank, action)) bytes += rank.buffers[use.buffer].bytes;
  return bytes;
}

// A micro-batch's own gradient is summed over all who share it, and what a shard group has made of it over the copies;
// a gradient of the whole step over either, in an order that the rules of completeness know.
bool right_sum(const RankProgram& rank, const Action& action, Replicas replicas) {
  if (replicas == Replicas::Own) return false;
  if (action.micro_batch == none) return true;
  bool reads_part = false;
  for (const Use& use : uses_of(rank, action))
    reads_part = reads_part || (rank.buffers[use.buffer].role == Role::PartialGradient && use.access == Access::Read);
  return reads_part == (replicas == Replicas::AcrossGroups);
}

// Gradients and parameters cross the replicas of one pipeline rank; a message or a tied sum has two pipeline ranks of
// one replica; the slots are everybody's.
bool right_group(const Program& program, uint16_t r, const Action& action) {
  const Group& group = program.groups[action.group];
  const std::vector<uint16_t>& ranks = group.pipeline_ranks;
  switch (action.kind) {
    case Kind::Unshard:
      return (group.replicas == Replicas::All || group.replicas == Replicas::ShardGroup) && ranks == std::vector{r};
    case Kind::Reduce:
      if (action.index != none)
        return ranks == std::vector{r} && right_sum(program.by_pipeline_rank[r], action, group.replicas);
      return group.replicas == Replicas::All &&
             std::set(ranks.begin(), ranks.end()).size() == program.by_pipeline_rank.size();
    case Kind::Send:
      return group.replicas == Replicas::Own && ranks.size() == 2 && ranks[0] == r && ranks[1] != r;
    case Kind::Receive:
      return group.replicas == Replicas::Own && ranks.size() == 2 && ranks[1] == r && ranks[0] != r;
    default:
      return group.replicas == Replicas::Own && ranks.size() == 2 && ranks[0] != ranks[1];
  }
}

}  // namespace

void check_groups(const Program& program, std::vector<Finding>& findings) {
  for (uint16_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    const RankProgram& rank = program.by_pipeline_rank[r];
    for (size_t i = 0; i < rank.actions.size(); ++i)
      if (rank.actions[i].group != none && !right_group(program, r, rank.actions[i]))
        findings.push_back(
            {"an action speaks to whom its kind says",
             fmt::format("{} with {}", place(program, r, i), program.groups[rank.actions[i].group].name)});
  }
  std::vector<std::vector<std::vector<uint32_t>>> lists(program.groups.size());
  for (uint16_t g = 0; g < program.groups.size(); ++g)
    for (const uint16_t member : program.groups[g].pipeline_ranks)
      lists[g].push_back(actions_in(program.by_pipeline_rank[member], g));

  for (uint16_t g = 0; g < program.groups.size(); ++g) {
    const Group& group = program.groups[g];
    for (size_t k = 0; k < lists[g].size(); ++k) {
      const uint16_t member = group.pipeline_ranks[k];
      const RankProgram& rank = program.by_pipeline_rank[member];
      for (uint32_t s = 0; s < lists[g][k].size(); ++s) {
        const Action& action = rank.actions[lists[g][k][s]];
        if (action.sequence != s)
          findings.push_back({"a group's actions are numbered in issue order", place(program, member, lists[g][k][s])});
        if (action.lane != rank.actions[lists[g][k].front()].lane)
          findings.push_back({"a group speaks on one lane", place(program, member, lists[g][k][s])});
      }
      if (k == 0) continue;
      const uint16_t first = group.pipeline_ranks[0];
      const RankProgram& other = program.by_pipeline_rank[first];
      if (lists[g][k].size() != lists[g][0].size()) {
        findings.push_back({"members of a group do the same number of actions in it",
                            fmt::format("{}: rank {} does {}, rank {} does {}", group.name, first, lists[g][0].size(),
                                        member, lists[g][k].size())});
        continue;
      }
      for (size_t s = 0; s < lists[g][k].size(); ++s) {
        const Action &mine = rank.actions[lists[g][k][s]], &theirs = other.actions[lists[g][0][s]];
        const bool pair = theirs.kind == Kind::Send && mine.kind == Kind::Receive && group.pipeline_ranks.size() == 2;
        const bool together = mine.kind == theirs.kind && mine.kind != Kind::Send && mine.kind != Kind::Receive;
        if (!(pair || together) || mine.index != theirs.index || mine.micro_batch != theirs.micro_batch ||
            mine.extent != theirs.extent || bytes_of(rank, mine) != bytes_of(other, theirs))
          findings.push_back({"members of a group meet in the same action",
                              fmt::format("{} #{}: {} against {}", group.name, s, place(program, first, lists[g][0][s]),
                                          place(program, member, lists[g][k][s]))});
      }
    }
  }
}

}  // namespace shardpipe
