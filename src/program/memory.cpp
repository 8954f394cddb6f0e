#include "program/memory.h"

#include <algorithm>

#include "program/lifetime.h"
#include "shard/shard.h"

namespace shardpipe {
namespace {

uint64_t& counter(RankMemory& memory, const Buffer& buffer) {
  switch (buffer.role) {
    case Role::Tokens:
    case Role::Targets:
      return memory.inputs;
    case Role::Activation:
    case Role::Saved:
    case Role::Recomputed:
    case Role::Between:
    case Role::ActivationGradient:
      return memory.activations;
    case Role::Workspace:
      return memory.workspace;
    case Role::Parameters:
      return buffer.resident ? memory.parameters : memory.gathered;
    case Role::Shard:
      return buffer.resident ? memory.parameters : memory.staging;
    case Role::PartialGradient:
    case Role::WireGradient:
      return memory.micro_batch_gradients;
    case Role::Gradient:
    case Role::ExactGradient:
      return buffer.micro_batch == none ? memory.gradients : memory.micro_batch_gradients;
    case Role::OptimizerState:
    case Role::Master:
      return buffer.resident ? memory.optimizer : memory.staging;
    case Role::Loss:
    case Role::Slots:
    case Role::Scalars:
    case Role::LossScale:
    case Role::Overflows:
      return memory.scalars;
  }
  return memory.scalars;
}

}  // namespace

RankMemory memory(const RankProgram& rank) {
  RankMemory now, peak;
  const std::vector<Lifetime> lifetimes = buffer_lifetimes(rank);
  std::vector<std::vector<uint32_t>> begins(rank.actions.size()), ends(rank.actions.size());
  for (uint32_t b = 0; b < rank.buffers.size(); ++b) {
    const Buffer& buffer = rank.buffers[b];
    if (buffer.stored) continue;
    if (buffer.resident) {
      counter(now, buffer) += buffer.bytes;
    } else if (lifetimes[b].used()) {
      begins[lifetimes[b].first].push_back(b);
      ends[lifetimes[b].last].push_back(b);
    }
  }
  const auto keep_peak = [&] {
    peak.parameters = std::max(peak.parameters, now.parameters);
    peak.gathered = std::max(peak.gathered, now.gathered);
    peak.gradients = std::max(peak.gradients, now.gradients);
    peak.micro_batch_gradients = std::max(peak.micro_batch_gradients, now.micro_batch_gradients);
    peak.optimizer = std::max(peak.optimizer, now.optimizer);
    peak.activations = std::max(peak.activations, now.activations);
    peak.staging = std::max(peak.staging, now.staging);
    peak.workspace = std::max(peak.workspace, now.workspace);
    peak.inputs = std::max(peak.inputs, now.inputs);
    peak.scalars = std::max(peak.scalars, now.scalars);
  };
  keep_peak();
  for (size_t i = 0; i < rank.actions.size(); ++i) {
    for (const uint32_t b : begins[i]) counter(now, rank.buffers[b]) += rank.buffers[b].bytes;
    keep_peak();
    for (const uint32_t b : ends[i]) counter(now, rank.buffers[b]) -= rank.buffers[b].bytes;
  }
  peak.arena = rank.arena_bytes;
  peak.store = rank.store_bytes;
  return peak;
}

RankPadding padding(const RankProgram& rank, const Model& model, uint64_t dp, uint64_t replica, uint64_t replicate) {
  const uint64_t ranks = dp / replicate;
  RankPadding sum;
  const auto add = [&](uint64_t& counter, const Buffer& buffer, bool whole) {
    const Shards cut = shards(model.groups[buffer.index].elements, ranks, replicate);
    const uint64_t held = whole ? cut.padded_elements() : cut.shard_elements;
    const uint64_t real = whole ? cut.elements : owned(cut, replica % ranks).size();
    counter += buffer.bytes / held * (held - real);  // bytes / held: of one element, in all optimizer states together
  };
  const bool exact = std::ranges::any_of(rank.buffers, [](const Buffer& b) { return b.role == Role::ExactGradient; });
  const Role accumulator = exact ? Role::ExactGradient : Role::Gradient;
  for (const Buffer& buffer : rank.buffers) {
    if (buffer.stored) continue;
    if (buffer.role == Role::Parameters && buffer.resident) add(sum.parameters, buffer, true);
    if (buffer.role == Role::Shard && buffer.resident) add(sum.parameters, buffer, false);
    if (buffer.role == Role::Master && buffer.resident) {
      const Shards cut = shards(model.groups[buffer.index].elements, ranks, replicate);
      add(sum.optimizer, buffer, buffer.bytes == cut.padded_elements() * sizeof(float));
    }
    if (buffer.role == accumulator && buffer.micro_batch == none) {
      const Shards cut = shards(model.groups[buffer.index].elements, ranks, replicate);
      add(sum.gradients, buffer, buffer.bytes == cut.padded_elements() * (exact ? sizeof(int64_t) : sizeof(float)));
    }
  }
  for (const Action& action : rank.actions)
    if (action.kind == Kind::OptimizerStep)
      for (const Use& use : uses_of(rank, action))
        if (rank.buffers[use.buffer].role == Role::OptimizerState && rank.buffers[use.buffer].resident)
          add(sum.optimizer, rank.buffers[use.buffer], action.extent == Extent::Whole);
  return sum;
}

}  // namespace shardpipe
