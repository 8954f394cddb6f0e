// A training step as data: for every pipeline rank, what it does, on which lane, to which buffers. Immutable once
// compiled; knows no device, no thread and no model code. Prints and parses (text.h); check.h says whether it is right,
// memory.h what it holds.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace shardpipe {

enum class Kind : uint8_t {
  Forward,         // of one block
  Recompute,       // what its forward had for the backward and did not keep
  Backward,        // of one block: input gradient, then weight gradients
  BackwardInput,   // the input gradient alone; not of the embedding, which has none
  BackwardWeight,  // the weight gradients, later
  Send,            // an activation or its gradient, to the other member of the group
  Receive,         //
  Unshard,         // all-gather a parameter group
  Reduce,          // all-reduce (extent Whole) or reduce-scatter (extent Owned) a gradient; all-reduce the slots
  SumTied,       // add the gradients of a tied parameter's two uses: over the group, or here when both are on this rank
  AddExact,      // round a gradient of one micro-batch to integers, and add them to an exact sum
  Round,         // an exact sum -> the gradient
  GradientNorm,  // squares of the gradients, and the losses -> this rank's slots
  Clip,          // all slots -> loss, norm, clip factor
  OptimizerStep,  // of one parameter group, or a piece of it
  Fetch,          // copy a buffer from the store into the arena
  Offload,        // and back
};

// The arithmetic of a block for a micro-batch.
constexpr bool is_compute(Kind kind) { return kind <= Kind::BackwardWeight; }
// What completes a micro-batch's gradients of a block's parameters.
constexpr bool gives_gradients(Kind kind) { return kind == Kind::Backward || kind == Kind::BackwardWeight; }

// A queue that runs in order. Lanes of a rank run side by side; only waits order them.
enum class Lane : uint8_t {
  Compute,
  SendForward,
  ReceiveForward,
  SendBackward,
  ReceiveBackward,
  Gather,
  Reduce,
  Fetch,
  Offload
};
inline constexpr int lane_count = 9;

// What a buffer means. The same name holds the same bits in every layout; only where it lives and how long differs.
enum class Role : uint8_t {
  Tokens,              // [batch, sequence] int32, of a micro-batch: input
  Targets,             // the same, one token later
  Activation,          // [tokens, hidden]: the input of block `index`
  Saved,               // what block `index` keeps for its backward
  Recomputed,          // what a Recompute makes again for it
  Between,             // what BackwardInput keeps for BackwardWeight
  ActivationGradient,  // gradient of Activation
  Workspace,           // scratch of the compute lane
  Parameters,          // a whole parameter group; a `copy` is one gather of it
  Shard,               // this rank's part of a parameter group
  Master,              // fp32 of a parameter group, or this rank's part, where Parameters or Shard are of 16 bits
  PartialGradient,     // Gradient of one micro-batch, summed over a shard group
  Gradient,            // of a parameter group by one `use` of it; with a micro-batch: of that alone, else accumulated
  ExactGradient,       // sums of Gradients in int64: see kernels/cpu/exact_sum.h; of one micro-batch, or of the step
  WireGradient,        // a Gradient rounded to 16 bits, as it crosses the replicas
  OptimizerState,      //
  Loss,                // LossSlot of a micro-batch
  Slots,               // doubles: see slots.h
  Scalars,             // StepScalars: see slots.h
  LossScale,           // of fp16: see loss_scale.h
  Overflows,           // int64: how many elements of this rank's gradients no exact sum could take
};

enum class Access : uint8_t { Read, Write, Add };  // Add reads too. There is no Free: a buffer ends at its last use
enum class Extent : uint8_t { Whole, Owned };      // all of a parameter group, or this rank's shard of it

inline constexpr uint16_t none = 0xFFFF;

struct Buffer {
  Role role{};
  uint16_t index = none;        // block or parameter group, as the role says
  uint16_t micro_batch = none;  // none: of the whole step
  uint16_t copy = 0;  // which gather (Parameters), which use of a tied group (Gradient), which piece (Master and
                      // OptimizerState in a store), or which time that it was fetched
  bool resident =
      false;            // holds a value before and after the step; else it begins at its first use and ends at its last
  bool stored = false;  // kept in the rank's store, host memory or a file, which Fetch and Offload alone can reach
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the arena or the store: filled by the pass place_buffers
  bool operator==(const Buffer&) const = default;
};

struct Use {
  uint32_t buffer;
  Access access;
  bool operator==(const Use&) const = default;
};

struct Action {
  Kind kind{};
  Lane lane = Lane::Compute;
  Extent extent = Extent::Whole;
  uint16_t index = none;  // block (Forward, Backward, Send, Receive) or parameter group
  uint16_t micro_batch = none;
  uint16_t piece = none;  // 1, 2, … of the parameter group's elements, where an OptimizerStep takes one after the other
  uint16_t group = none;  // whom it speaks to: Program::groups
  uint32_t sequence = 0;  // its place in the group's one order, on which all members agree
  uint32_t first_use = 0, use_count = 0;
  uint32_t first_wait = 0, wait_count = 0;
  bool operator==(const Action&) const = default;
};

// Which data-parallel replicas of its pipeline ranks a group unites.
enum class Replicas : uint8_t {
  Own,           // those with the same number
  All,           //
  ShardGroup,    // neighbours that share one copy of sharded state
  AcrossGroups,  // those at the same place of each shard group
};
constexpr uint64_t replicas_in(Replicas replicas, uint64_t dp, uint64_t replicate) {
  return replicas == Replicas::Own          ? 1
         : replicas == Replicas::All        ? dp
         : replicas == Replicas::ShardGroup ? dp / replicate
                                            : replicate;
}

// Who speaks together, on one communicator of their own, made before the first step.
struct Group {
  std::string name;                      // "forward 0>1", "gather 0", "tied", "world"
  std::vector<uint16_t> pipeline_ranks;  // in the order of sums; of a message: sender, receiver
  Replicas replicas = Replicas::Own;
  bool operator==(const Group&) const = default;
};

struct RankProgram {
  std::vector<Action> actions;  // issue order: a lane's order is a sub-order of it
  std::vector<Use> uses;        // of an action: what it reads, then what it writes or adds to
  std::vector<Buffer> buffers;
  std::vector<uint32_t> waits;  // actions on other lanes; filled by the last pass from `uses`, never by hand
  uint64_t arena_bytes = 0;
  uint64_t store_bytes = 0;

  const Use* begin_uses(const Action& action) const { return uses.data() + action.first_use; }
  const Use* end_uses(const Action& action) const { return begin_uses(action) + action.use_count; }
  bool operator==(const RankProgram&) const = default;
};

struct Program {
  std::vector<Group> groups;
  std::vector<RankProgram> by_pipeline_rank;  // data-parallel replicas of a pipeline rank share one
  bool operator==(const Program&) const = default;
};

// Any range-for over an action's uses.
struct UseRange {
  const Use *first, *last;
  const Use* begin() const { return first; }
  const Use* end() const { return last; }
};
inline UseRange uses_of(const RankProgram& rank, const Action& action) {
  return {rank.begin_uses(action), rank.end_uses(action)};
}

// Whether an action sums gradients in int64.
inline bool is_exact(const RankProgram& rank, const Action& action) {
  for (const Use& use : uses_of(rank, action))
    if (rank.buffers[use.buffer].role == Role::ExactGradient) return true;
  return false;
}

// Of a Reduce of gradients: `source`, sent as `wire` where it is rounded, is summed into `sum`, which is the source
// itself, or overwritten, or (accumulate) added to. Buffers of the rank; UINT32_MAX: no wire.
struct ReduceUses {
  uint32_t source = UINT32_MAX, wire = UINT32_MAX, sum = UINT32_MAX;
  bool accumulate = false;
};
inline ReduceUses reduce_uses(const RankProgram& rank, const Action& reduce) {
  ReduceUses found;
  for (const Use& use : uses_of(rank, reduce)) {
    if (rank.buffers[use.buffer].role == Role::WireGradient) {
      found.wire = use.buffer;
      continue;
    }
    if (found.source == UINT32_MAX) found.source = use.buffer;
    found.sum = use.buffer;
    found.accumulate = found.sum != found.source && use.access == Access::Add;
  }
  return found;
}

}  // namespace shardpipe
