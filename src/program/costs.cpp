#include "program/costs.h"

#include <algorithm>

#include "base/error.h"
#include "program/text.h"
#include "program/traffic.h"

namespace shardpipe {
namespace {

const BlockSeconds& block_of(const CostModel& costs, const Action& action) {
  if (costs.blocks.size() == 1) return costs.blocks[0];
  if (action.index >= costs.blocks.size())
    throw InvariantError(fmt::format("{} costs of blocks, none for {}", costs.blocks.size(), name_of(action)));
  return costs.blocks[action.index];
}

uint64_t size_of(const CostModel& costs, const Group& group) {
  return group.pipeline_ranks.size() * replicas_in(group.replicas, costs.dp, costs.replicate);
}

// All of the group's members, where one node has them all.
uint64_t members_together(const CostModel& costs, const Program& program, uint16_t group) {
  return costs.nodes.members.empty() ? size_of(costs, program.groups[group]) : costs.nodes.members.at(group);
}

double message_seconds(const CostModel& costs, const Program& program, uint16_t group, double bytes) {
  return members_together(costs, program, group) > 1 ? costs.message.seconds(bytes)
                                                     : costs.nodes.message.seconds(bytes);
}

// A ring through several nodes enters and leaves each by as many links as it has members there; the slowest part of
// its way decides.
double collective_seconds(const CostModel& costs, const Program& program, uint16_t group, double bytes) {
  const uint64_t members = size_of(costs, program.groups[group]);
  const uint64_t together = members_together(costs, program, group);
  if (members == 1) return 0;
  if (together == members) return costs.collective.seconds(bytes);
  const uint64_t nodes = (members + together - 1) / together;
  const BytesCost& between = costs.nodes.collective;
  return between.fixed_seconds + static_cast<double>(nodes - 1) * costs.nodes.per_node_seconds +
         bytes * std::max(costs.collective.seconds_per_byte, between.seconds_per_byte / static_cast<double>(together));
}

}  // namespace

std::vector<uint32_t> members_in_a_node(const Program& program, uint64_t dp, uint64_t replicate,
                                        uint64_t ranks_in_node) {
  std::vector<uint32_t> members;
  std::vector<uint64_t> nodes;  // of the members of one such group
  for (const Group& group : program.groups) {
    const uint64_t replicas = replicas_in(group.replicas, dp, replicate);
    const uint64_t shard_group = dp / replicate;
    const uint64_t stride = group.replicas == Replicas::AcrossGroups ? shard_group : 1;
    // Replicas have a group of this name each, or share one; where the first member of each is.
    const uint64_t step = group.replicas == Replicas::ShardGroup ? shard_group : 1;
    uint32_t fewest = UINT32_MAX;
    for (uint64_t first = 0; first < dp / replicas * step; first += step) {
      nodes.clear();
      for (const uint16_t pipeline_rank : group.pipeline_ranks)
        for (uint64_t i = 0; i < replicas; ++i)
          nodes.push_back((pipeline_rank * dp + first + i * stride) / ranks_in_node);
      std::ranges::sort(nodes);
      for (auto begin = nodes.begin(); begin != nodes.end();) {
        const auto end = std::upper_bound(begin, nodes.end(), *begin);
        fewest = std::min(fewest, static_cast<uint32_t>(end - begin));
        begin = end;
      }
    }
    members.push_back(fewest);
  }
  return members;
}

double seconds_of(const CostModel& costs, const Program& program, uint16_t pipeline_rank, const Action& action) {
  const RankProgram& rank = program.by_pipeline_rank[pipeline_rank];
  switch (action.kind) {
    case Kind::Forward:
      return block_of(costs, action).forward;
    case Kind::Recompute:
      return block_of(costs, action).recompute;
    case Kind::Backward:
      return block_of(costs, action).backward_input + block_of(costs, action).backward_weight;
    case Kind::BackwardInput:
      return block_of(costs, action).backward_input;
    case Kind::BackwardWeight:
      return block_of(costs, action).backward_weight;
    case Kind::Send:
    case Kind::Receive:
      return message_seconds(costs, program, action.group,
                             static_cast<double>(rank.buffers[rank.begin_uses(action)->buffer].bytes));
    case Kind::Fetch:
    case Kind::Offload:
      return costs.store.seconds(static_cast<double>(rank.buffers[rank.begin_uses(action)->buffer].bytes));
    default:
      break;
  }
  if (action.group != none)
    return collective_seconds(
        costs, program, action.group,
        static_cast<double>(sent_bytes(program, pipeline_rank, action, costs.dp, costs.replicate)));
  double bytes = 0;
  for (const Use& use : uses_of(rank, action)) bytes += static_cast<double>(rank.buffers[use.buffer].bytes);
  return costs.update.seconds(bytes);
}

std::vector<BlockSeconds> block_seconds_at(const Model& model, MicroBatchShape micro_batch, double flops_per_second,
                                           std::span<const Recompute> of_blocks) {
  std::vector<BlockSeconds> seconds;
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const Recompute recompute = b < of_blocks.size() ? of_blocks[b] : Recompute::None;
    const double forward = forward_flops(model, model.blocks[b], micro_batch) / flops_per_second;
    const double again = recompute_flops(model, model.blocks[b], micro_batch, recompute) / flops_per_second;
    seconds.push_back({forward, forward, forward, again});
  }
  return seconds;
}

std::vector<BlockSeconds> fixed_block_seconds(const Model& model, const BlockSeconds& embedding,
                                              const BlockSeconds& layer, const BlockSeconds& head) {
  std::vector<BlockSeconds> seconds;
  for (const Block& block : model.blocks)
    seconds.push_back(block.kind == BlockKind::Embedding ? embedding : block.kind == BlockKind::Head ? head : layer);
  return seconds;
}

}  // namespace shardpipe
