#include "engine/bind_comm.h"

#include <concepts>
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

namespace {

// The elements of a buffer, and of a whole gradient this rank's shard.
template <typename T>
std::span<T> elements_of(const ArenaView& arena, const Buffer& buffer) {
  return {arena.get<T>(buffer), buffer.bytes / sizeof(T)};
}
template <typename T>
std::span<T> owned_part(const StepShape& shape, const RankPlace& place, const ArenaView& arena, const Buffer& buffer) {
  const uint64_t shard = shape.shards_of(buffer.index).shard_elements;
  const std::span<T> all = elements_of<T>(arena, buffer);
  return all.size() == shard ? all : all.subspan(shape.shard_index(place.replica) * shard, shard);
}

// Sums of gradients in fp32, or in int64 where they are exact.
template <typename T>
BoundAction bind_sum(const Program& program, const StepShape& shape, const RankPlace& place, const ArenaView& arena,
                     const Action& action, Communicator* comm) {
  const RankProgram& rank = program.by_pipeline_rank[place.pipeline_rank];
  const auto all = [&](const Buffer& buffer) { return elements_of<T>(arena, buffer); };
  const auto owned = [&](const Buffer& buffer) { return owned_part<T>(shape, place, arena, buffer); };
  const bool of_shards = action.extent == Extent::Owned;
  if (action.kind == Kind::SumTied) {
    const Buffer& gradient = rank.buffers[rank.begin_uses(action)->buffer];
    const std::span<T> data = of_shards ? owned(gradient) : all(gradient);
    return [comm, data] { comm->all_reduce(std::span<const T>(data), data, false); };
  }
  const ReduceUses reduce = reduce_uses(rank, action);
  const Buffer &source = rank.buffers[reduce.source], &sum = rank.buffers[reduce.sum];
  const bool accumulate = reduce.accumulate;
  if (program.groups[action.group].replicas == Replicas::AcrossGroups)
    return [comm, from = std::span<const T>(owned(source)), to = owned(sum), accumulate] {
      comm->all_reduce(from, to, accumulate);
    };
  const std::span<const T> from = all(source);
  const std::span<T> to = of_shards ? owned(sum) : all(sum);
  if constexpr (std::same_as<T, float>)
    if (reduce.wire != UINT32_MAX) {
      const std::span<BFloat16> wire(arena.get<BFloat16>(rank.buffers[reduce.wire]), from.size());
      return [=] {
        kernels::convert(from.data(), wire.data(), static_cast<int64_t>(from.size()));
        of_shards ? comm->reduce_scatter(std::span<const BFloat16>(wire), to, accumulate)
                  : comm->all_reduce(std::span<const BFloat16>(wire), to, accumulate);
      };
    }
  return [=] { of_shards ? comm->reduce_scatter(from, to, accumulate) : comm->all_reduce(from, to, accumulate); };
}

}  // namespace

BoundAction bind_communication(const Program& program, const StepShape& shape, const RankPlace& place, ArenaView arena,
                               const Action& action) {
  const RankProgram& rank = program.by_pipeline_rank[place.pipeline_rank];
  Communicator* comm = (*place.communicators)[action.group].get();
  check_invariant(comm != nullptr, "{} speaks to a group that it is no member of: {}", name_of(action),
                  program.groups[action.group].name);
  const Use* uses = rank.begin_uses(action);
  const Buffer& first = rank.buffers[uses[0].buffer];
  const auto bytes_in = [&](const Buffer& buffer) { return std::span(arena.get<std::byte>(buffer), buffer.bytes); };
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
    case Kind::SumTied:
    case Kind::Reduce:
      break;
    default:
      throw InvariantError(fmt::format("{} does not speak to a group", name_of(action)));
  }
  if (first.role == Role::Slots)
    return
        [comm, slots = std::span(arena.get<double>(first), first.bytes / sizeof(double))] { comm->all_reduce(slots); };
  return is_exact(rank, action) ? bind_sum<int64_t>(program, shape, place, arena, action, comm)
                                : bind_sum<float>(program, shape, place, arena, action, comm);
}

}  // namespace shardpipe
