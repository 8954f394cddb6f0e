#include "program/traffic.h"

#include <algorithm>

#include "base/error.h"

namespace shardpipe {

namespace {

uint64_t whole_gradient_bytes(const RankProgram& rank, uint16_t parameter_group, Role role) {
  uint64_t bytes = 0;
  for (const Buffer& buffer : rank.buffers)
    if (buffer.role == role && buffer.index == parameter_group) bytes = std::max(bytes, buffer.bytes);
  return bytes;
}

// What a rank sends of an array in one all-gather or one reduce-scatter; the array is padded to a multiple of the
// ranks.
uint64_t collective_bytes(uint64_t bytes, uint64_t ranks, uint64_t bytes_per_element) {
  const uint64_t elements = bytes / bytes_per_element;
  return (elements + ranks - 1) / ranks * (ranks - 1) * bytes_per_element;
}

uint64_t copied_bytes(const RankProgram& rank, const Action& action) {
  return rank.buffers[rank.begin_uses(action)->buffer].bytes;
}

}  // namespace

uint64_t sent_bytes(const Program& program, uint16_t pipeline_rank, const Action& action, uint64_t dp,
                    uint64_t replicate) {
  if (action.group == none) return 0;
  const RankProgram& rank = program.by_pipeline_rank[pipeline_rank];
  const Group& group = program.groups[action.group];
  const uint64_t ranks = group.pipeline_ranks.size() * replicas_in(group.replicas, dp, replicate);
  uint64_t bytes = 0;  // of the whole array: the largest buffer, where a shard of it is the other
  for (const Use& use : uses_of(rank, action)) bytes = std::max(bytes, rank.buffers[use.buffer].bytes);
  const uint64_t shard_group = dp / replicate;
  const bool exact = is_exact(rank, action);
  const uint64_t element = exact ? sizeof(int64_t) : sizeof(float);
  const uint64_t whole_bytes = whole_gradient_bytes(rank, action.index, exact ? Role::ExactGradient : Role::Gradient);
  const uint64_t owned_bytes = action.index != none && bytes == whole_bytes ? bytes / shard_group : bytes;
  const bool slots = action.kind == Kind::Reduce && action.index == none;
  const uint64_t once = collective_bytes(bytes, ranks, slots ? sizeof(double) : element);
  const bool rounded = action.kind == Kind::Reduce && reduce_uses(rank, action).wire != UINT32_MAX;
  const uint64_t scattered = rounded ? once / 2 : once;  // what is summed; its sums are fp32
  switch (action.kind) {
    case Kind::Send:
      return bytes;
    case Kind::Unshard:
      return bytes / ranks * (ranks - 1);  // padded, in whatever type
    case Kind::Reduce:
      // Scattered; or reduced, of a whole array or across groups of this rank's part alone.
      if (group.replicas == Replicas::AcrossGroups) return 2 * collective_bytes(owned_bytes, ranks, element);
      return action.extent == Extent::Owned ? scattered : scattered + once;
    case Kind::SumTied:
      // A whole array of which only this replica's part is summed, or a shard that is summed whole.
      if (action.extent == Extent::Owned) bytes = owned_bytes;
      return 2 * collective_bytes(bytes, ranks, element);
    default:
      return 0;
  }
}

Traffic traffic(const Program& program, uint16_t pipeline_rank, uint64_t dp, uint64_t replicate) {
  check_invariant(pipeline_rank < program.by_pipeline_rank.size() && dp >= 1, "no traffic of rank {} of {}, dp {}",
                  pipeline_rank, program.by_pipeline_rank.size(), dp);
  Traffic sent;
  for (const Action& action : program.by_pipeline_rank[pipeline_rank].actions) {
    const uint64_t bytes = sent_bytes(program, pipeline_rank, action, dp, replicate);
    switch (action.kind) {
      case Kind::Send:
        sent.send += bytes;
        break;
      case Kind::Unshard:
        sent.all_gather += bytes;
        break;
      case Kind::Reduce:
        (action.index == none ? sent.scalars
         : action.extent == Extent::Owned && program.groups[action.group].replicas != Replicas::AcrossGroups
             ? sent.reduce_scatter
             : sent.all_reduce) += bytes;
        break;
      case Kind::SumTied:
        sent.tied += bytes;
        break;
      case Kind::Fetch:
        sent.fetched += copied_bytes(program.by_pipeline_rank[pipeline_rank], action);
        break;
      case Kind::Offload:
        sent.offloaded += copied_bytes(program.by_pipeline_rank[pipeline_rank], action);
        break;
      default:
        break;
    }
  }
  return sent;
}

}  // namespace shardpipe
