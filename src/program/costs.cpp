#include "program/costs.h"

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

}  // namespace

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
      return costs.message.seconds(static_cast<double>(rank.buffers[rank.begin_uses(action)->buffer].bytes));
    case Kind::Fetch:
    case Kind::Offload:
      return costs.store.seconds(static_cast<double>(rank.buffers[rank.begin_uses(action)->buffer].bytes));
    default:
      break;
  }
  if (action.group != none) {
    const Group& group = program.groups[action.group];
    if (group.pipeline_ranks.size() * replicas_in(group.replicas, costs.dp, costs.replicate) == 1) return 0;
    return costs.collective.seconds(
        static_cast<double>(sent_bytes(program, pipeline_rank, action, costs.dp, costs.replicate)));
  }
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
