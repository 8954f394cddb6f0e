#include "engine/bind_comm.h"

#include <span>

#include "base/error.h"
#include "kernels/cpu/convert.h"
#include "program/text.h"

namespace shardpipe {

std::vector<int> members_of(const StepShape& shape, const Group& group, uint16_t replica) {
  std::vector<int> members;
  for (const uint16_t pipeline_rank : group.pipeline_ranks) {
    for (uint16_t r = 0; r < shape.layout.dp; ++r) {
      const bool same_copy = shape.copy_index(r) == shape.copy_index(replica);
      const bool same_shard = shape.shard_index(r) == shape.shard_index(replica);
      const bool member = group.replicas == Replicas::Own            ? r == replica
                          : group.replicas == Replicas::ShardGroup   ? same_copy
                          : group.replicas == Replicas::AcrossGroups ? same_shard
                                                                     : true;
      if (member) members.push_back(world_rank(shape, pipeline_rank, r));
    }
  }
  return members;
}

BoundAction bind_communication(const Program& program, const StepShape& shape, const RankPlace& place, ArenaView arena,
                               const Action& action) {
  const RankProgram& rank = program.by_pipeline_rank[place.pipeline_rank];
  Communicator* comm = (*place.communicators)[action.group].get();
  check_invariant(comm != nullptr, "{} speaks to a group that it is no member of: {}", name_of(action),
                  program.groups[action.group].name);
  const Use* uses = rank.begin_uses(action);
  const Buffer& first = rank.buffers[uses[0].buffer];
  const auto bytes_in = [&](const Buffer& buffer) { return std::span(arena.get<std::byte>(buffer), buffer.bytes); };
  // Floats of a use; of a whole gradient all, or this rank's shard.
  const auto floats = [&](const Buffer& buffer) {
    return std::span(arena.get<float>(buffer), buffer.bytes / sizeof(float));
  };
  const auto owned_part = [&](const Buffer& buffer) {
    const uint64_t shard = shape.shards_of(buffer.index).shard_elements;
    const std::span<float> all = floats(buffer);
    return all.size() == shard ? all : all.subspan(shape.shard_index(place.replica) * shard, shard);
  };
  switch (action.kind) {
    case Kind::Send:
      return [comm, bytes = bytes_in(first)] { comm->send(bytes, 1); };
    case Kind::Receive:
      return [comm, bytes = bytes_in(first)] { comm->receive(bytes, 0); };
    case Kind::Unshard: {
      const std::span<std::byte> whole = bytes_in(rank.buffers[uses[action.use_count - 1].buffer]);
      const size_t shard = whole.size() / shape.shards_of(action.index).ranks;
      const bool in_place = action.use_count == 1;
      return [comm, from = in_place ? whole.subspan(shape.shard_index(place.replica) * shard, shard) : bytes_in(first),
              whole] { comm->all_gather(from, whole); };
    }
    case Kind::SumTied: {
      const std::span<float> data = action.extent == Extent::Owned ? owned_part(first) : floats(first);
      return [comm, data] { comm->all_reduce(data, data, false); };
    }
    case Kind::Reduce:
      break;
    default:
      throw InvariantError(fmt::format("{} does not speak to a group", name_of(action)));
  }
  if (first.role == Role::Slots)
    return
        [comm, slots = std::span(arena.get<double>(first), first.bytes / sizeof(double))] { comm->all_reduce(slots); };
  const ReduceUses reduce = reduce_uses(rank, action);
  const Buffer &source = rank.buffers[reduce.source], &sum = rank.buffers[reduce.sum];
  const bool accumulate = reduce.accumulate;
  if (program.groups[action.group].replicas == Replicas::AcrossGroups)
    return
        [comm, from = owned_part(source), to = owned_part(sum), accumulate] { comm->all_reduce(from, to, accumulate); };
  const bool scatter = action.extent == Extent::Owned;
  const std::span<float> from = floats(source), to = scatter ? owned_part(sum) : floats(sum);
  if (reduce.wire == UINT32_MAX)
    return [=] { scatter ? comm->reduce_scatter(from, to, accumulate) : comm->all_reduce(from, to, accumulate); };
  const std::span<BFloat16> wire(arena.get<BFloat16>(rank.buffers[reduce.wire]), from.size());
  return [=] {
    kernels::convert(from.data(), wire.data(), static_cast<int64_t>(from.size()));
    scatter ? comm->reduce_scatter(std::span<const BFloat16>(wire), to, accumulate)
            : comm->all_reduce(std::span<const BFloat16>(wire), to, accumulate);
  };
}

}  // namespace shardpipe
