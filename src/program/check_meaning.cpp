// An action uses the buffers that its name says, and no others: the forward of block 3 reads activation 3 and writes
// activation 4 of its micro-batch. Written down as what each kind may use, how, and how often.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "program/check_rules.h"
#include "program/text.h"

namespace shardpipe {
namespace {

constexpr int any_number = 1 << 30;

struct Allowed {
  Role role;
  std::initializer_list<Access> accesses;
  uint16_t index = none, micro_batch = none;
  int least = 1, most = 1;
  bool any_index = false;
  bool any_micro_batch = false;
  uint16_t piece = none;  // that it is of: none is any
};

bool matches(const Allowed& allowed, const Buffer& buffer, Access access) {
  return allowed.role == buffer.role && (allowed.any_index || allowed.index == buffer.index) &&
         (allowed.any_micro_batch || allowed.micro_batch == buffer.micro_batch) &&
         (allowed.piece == none || allowed.piece == buffer.copy) &&
         std::ranges::find(allowed.accesses, access) != allowed.accesses.end();
}

constexpr auto read = {Access::Read};
constexpr auto write = {Access::Write};
constexpr auto add = {Access::Add};
constexpr auto write_or_add = {Access::Write, Access::Add};

// last_block: the head, whose output is the loss. gradient: the role of what the action sums, if it does.
std::vector<Allowed> allowed_uses(const Action& action, uint16_t last_block, Role gradient) {
  const uint16_t i = action.index, m = action.micro_batch;
  const auto next = static_cast<uint16_t>(i + 1);
  const int has_input = i > 0 ? 1 : 0, has_output = i < last_block ? 1 : 0;
  switch (action.kind) {
    case Kind::Forward:
      return {
          {.role = Role::Tokens, .accesses = read, .micro_batch = m, .least = 1 - has_input, .most = 1 - has_input},
          {.role = Role::Targets, .accesses = read, .micro_batch = m, .least = 1 - has_output, .most = 1 - has_output},
          {.role = Role::Parameters, .accesses = read, .most = any_number, .any_index = true},
          {.role = Role::Activation, .accesses = read, .index = i, .micro_batch = m, .least = has_input},
          {.role = Role::Activation,
           .accesses = write,
           .index = next,
           .micro_batch = m,
           .least = has_output,
           .most = has_output},
          {.role = Role::Loss, .accesses = write, .micro_batch = m, .least = 1 - has_output, .most = 1 - has_output},
          {.role = Role::Saved, .accesses = write, .index = i, .micro_batch = m, .least = 0},
          {.role = Role::Workspace, .accesses = write, .least = 0}};
    case Kind::Recompute:  // from the block's input and its parameters, or from what was kept
      return {{.role = Role::Targets, .accesses = read, .micro_batch = m, .least = 0, .most = 1 - has_output},
              {.role = Role::Parameters, .accesses = read, .least = 0, .most = any_number, .any_index = true},
              {.role = Role::Activation, .accesses = read, .index = i, .micro_batch = m, .least = 0, .most = has_input},
              {.role = Role::Saved, .accesses = read, .index = i, .micro_batch = m, .least = 0},
              {.role = Role::Recomputed, .accesses = write, .index = i, .micro_batch = m},
              {.role = Role::Workspace, .accesses = write, .least = 0}};
    case Kind::BackwardInput:
      return {
          {.role = Role::Targets, .accesses = read, .micro_batch = m, .least = 1 - has_output, .most = 1 - has_output},
          {.role = Role::Parameters, .accesses = read, .most = any_number, .any_index = true},
          {.role = Role::Activation, .accesses = read, .index = i, .micro_batch = m},
          {.role = Role::LossScale, .accesses = read, .least = 0, .most = 1 - has_output},
          {.role = Role::ActivationGradient,
           .accesses = read,
           .index = next,
           .micro_batch = m,
           .least = has_output,
           .most = has_output},
          {.role = Role::Saved, .accesses = add, .index = i, .micro_batch = m, .least = 0},
          {.role = Role::Recomputed, .accesses = add, .index = i, .micro_batch = m, .least = 0},
          {.role = Role::ActivationGradient, .accesses = write, .index = i, .micro_batch = m},
          {.role = Role::Between, .accesses = write, .index = i, .micro_batch = m, .least = 0},
          {.role = Role::Workspace, .accesses = write, .least = 0}};
    case Kind::BackwardWeight:
      return {{.role = Role::Tokens, .accesses = read, .micro_batch = m, .least = 1 - has_input, .most = 1 - has_input},
              {.role = Role::Activation, .accesses = read, .index = i, .micro_batch = m, .least = has_input},
              {.role = Role::ActivationGradient,
               .accesses = read,
               .index = next,
               .micro_batch = m,
               .least = has_output,
               .most = has_output},
              {.role = Role::Saved, .accesses = read, .index = i, .micro_batch = m, .least = 0},
              {.role = Role::Recomputed, .accesses = read, .index = i, .micro_batch = m, .least = 0},
              {.role = Role::Between, .accesses = read, .index = i, .micro_batch = m, .least = 0},
              {.role = Role::Gradient, .accesses = write_or_add, .least = 0, .most = any_number, .any_index = true},
              {.role = Role::Gradient,
               .accesses = write,
               .micro_batch = m,
               .least = 0,
               .most = any_number,
               .any_index = true},
              {.role = Role::Workspace, .accesses = write, .least = 0}};
    case Kind::Backward:
      return {
          {.role = Role::Tokens, .accesses = read, .micro_batch = m, .least = 1 - has_input, .most = 1 - has_input},
          {.role = Role::Targets, .accesses = read, .micro_batch = m, .least = 1 - has_output, .most = 1 - has_output},
          {.role = Role::Parameters, .accesses = read, .most = any_number, .any_index = true},
          {.role = Role::Activation, .accesses = read, .index = i, .micro_batch = m, .least = has_input},
          {.role = Role::LossScale, .accesses = read, .least = 0, .most = 1 - has_output},
          {.role = Role::ActivationGradient,
           .accesses = read,
           .index = next,
           .micro_batch = m,
           .least = has_output,
           .most = has_output},
          {.role = Role::Saved, .accesses = add, .index = i, .micro_batch = m, .least = 0},
          {.role = Role::Recomputed, .accesses = add, .index = i, .micro_batch = m, .least = 0},
          {.role = Role::ActivationGradient,
           .accesses = write,
           .index = i,
           .micro_batch = m,
           .least = has_input,
           .most = has_input},
          {.role = Role::Gradient, .accesses = write_or_add, .least = 0, .most = any_number, .any_index = true},
          {.role = Role::Gradient,
           .accesses = write,
           .micro_batch = m,
           .least = 0,
           .most = any_number,
           .any_index = true},
          {.role = Role::Workspace, .accesses = write, .least = 0}};
    case Kind::Send:
    case Kind::Receive: {
      const bool forward = action.lane == Lane::SendForward || action.lane == Lane::ReceiveForward;
      return {{.role = forward ? Role::Activation : Role::ActivationGradient,
               .accesses = action.kind == Kind::Send ? read : write,
               .index = i,
               .micro_batch = m}};
    }
    case Kind::Unshard:  // from shards, or in place
      return {{.role = Role::Shard, .accesses = read, .index = i, .least = 0},
              {.role = Role::Parameters, .accesses = write_or_add, .index = i}};
    case Kind::Reduce:
      if (i == none) return {{.role = Role::Slots, .accesses = add}};
      if (m == none)
        return {{.role = gradient, .accesses = add, .index = i},
                {.role = Role::WireGradient, .accesses = write, .index = i, .least = 0}};
      // Of a micro-batch's gradient into the sum; with copies of shard groups, into a part of it, and from there.
      return {{.role = gradient, .accesses = read, .index = i, .micro_batch = m, .least = 0},
              {.role = Role::WireGradient, .accesses = write, .index = i, .micro_batch = m, .least = 0},
              {.role = Role::PartialGradient,
               .accesses = {Access::Read, Access::Write},
               .index = i,
               .micro_batch = m,
               .least = 0},
              {.role = gradient, .accesses = write_or_add, .index = i, .least = 0}};
    case Kind::SumTied:  // with the other rank, or of two gradients here
      return {{.role = gradient, .accesses = add, .index = i},
              {.role = gradient,
               .accesses = read,
               .index = i,
               .least = action.group == none ? 1 : 0,
               .most = action.group == none ? 1 : 0}};
    case Kind::AddExact:  // to the sum of the step, or to that of a micro-batch
      return {{.role = Role::Gradient, .accesses = read, .index = i, .micro_batch = m},
              {.role = Role::LossScale, .accesses = read, .least = 0},
              {.role = Role::ExactGradient, .accesses = write_or_add, .index = i, .least = 0},
              {.role = Role::ExactGradient, .accesses = write, .index = i, .micro_batch = m, .least = 0},
              {.role = Role::Overflows, .accesses = write_or_add}};
    case Kind::Round:
      return {{.role = Role::ExactGradient, .accesses = read, .index = i},
              {.role = Role::LossScale, .accesses = read, .least = 0},
              {.role = Role::Gradient, .accesses = write, .index = i}};
    case Kind::GradientNorm:
      return {{.role = Role::Slots, .accesses = write},
              {.role = Role::Overflows, .accesses = read, .least = 0},
              {.role = Role::LossScale, .accesses = read, .least = 0},
              {.role = Role::Gradient, .accesses = read, .least = 0, .most = any_number, .any_index = true},
              {.role = Role::Loss, .accesses = read, .least = 0, .most = any_number, .any_micro_batch = true}};
    case Kind::Clip:
      return {{.role = Role::Slots, .accesses = read},
              {.role = Role::Scalars, .accesses = write},
              {.role = Role::LossScale, .accesses = add, .least = 0}};
    case Kind::OptimizerStep: {
      const bool owned = action.extent == Extent::Owned;
      return {{.role = Role::Scalars, .accesses = read},
              {.role = Role::Gradient, .accesses = read, .index = i},
              {.role = Role::Parameters, .accesses = add, .index = i, .least = owned ? 0 : 1},
              {.role = Role::Shard, .accesses = add, .index = i, .least = 0, .most = owned ? 1 : 0},
              {.role = Role::Master, .accesses = add, .index = i, .least = 0, .piece = action.piece},
              {.role = Role::OptimizerState, .accesses = add, .index = i, .least = 0, .piece = action.piece}};
    }
    case Kind::Fetch:
    case Kind::Offload:
      break;  // see check_store
  }
  return {};
}

// What of a parameter group is stored in one type: parameters in that of the blocks, the rest in fp32.
bool is_parameters(Role role) { return role == Role::Parameters || role == Role::Shard; }
bool is_fp32(Role role) { return role == Role::Gradient || role == Role::PartialGradient || role == Role::Master; }

// All whole arrays of a parameter group in one type have one size: parameters, gathered or kept, and gradients of one
// micro-batch. What is kept of a gradient is as large, or a shard of it.
void check_sizes(const Program& program, size_t r, std::vector<Finding>& findings) {
  const std::vector<Buffer>& buffers = program.by_pipeline_rank[r].buffers;
  std::map<std::pair<bool, uint16_t>, uint64_t> whole;
  const auto key = [](const Buffer& buffer) { return std::pair(is_parameters(buffer.role), buffer.index); };
  const auto must_be_whole = [](const Buffer& buffer) {
    return buffer.role == Role::Parameters || (buffer.role == Role::Gradient && buffer.micro_batch != none);
  };
  const bool exact =
      std::ranges::any_of(buffers, [](const Buffer& buffer) { return buffer.role == Role::ExactGradient; });
  for (const Buffer& buffer : buffers)
    if (must_be_whole(buffer)) whole.try_emplace(key(buffer), buffer.bytes);
  std::map<uint16_t, uint64_t> stored_masters;
  for (const Buffer& buffer : buffers)
    if (buffer.role == Role::Master && buffer.stored) stored_masters[buffer.index] += buffer.bytes;
  for (Buffer buffer : buffers) {
    if (buffer.role == Role::Master && stored_masters.contains(buffer.index))
      buffer.bytes = stored_masters[buffer.index];  // all its pieces
    const bool wire = buffer.role == Role::WireGradient;
    const bool integers = buffer.role == Role::ExactGradient || (exact && buffer.role == Role::PartialGradient);
    if (!is_parameters(buffer.role) && !is_fp32(buffer.role) && !wire && !integers) continue;
    if (!whole.contains(key(buffer))) continue;
    const uint64_t bytes = (integers ? 2 : 1) * whole[key(buffer)];  // of a whole array of its elements
    const bool is_whole = must_be_whole(buffer) || (buffer.role == Role::ExactGradient && buffer.micro_batch != none);
    const bool fits = wire       ? 2 * buffer.bytes == bytes
                      : is_whole ? buffer.bytes == bytes
                                 : buffer.bytes > 0 && bytes % buffer.bytes == 0;
    if (!fits)
      findings.push_back(
          {"arrays of one parameter group are whole or a shard",
           fmt::format("rank {}: {} has {} bytes, another {}", r, name_of(buffer), buffer.bytes, bytes)});
  }
}

}  // namespace

void check_meaning(const Program& program, std::vector<Finding>& findings) {
  uint16_t last_block = 0;
  for (const RankProgram& rank : program.by_pipeline_rank)
    for (const Action& action : rank.actions)
      if (is_compute(action.kind)) last_block = std::max(last_block, action.index);

  std::map<uint16_t, std::set<uint16_t>> groups_of_block;
  for (size_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    const RankProgram& rank = program.by_pipeline_rank[r];
    check_sizes(program, r, findings);
    for (size_t a = 0; a < rank.actions.size(); ++a) {
      const Action& action = rank.actions[a];
      if (action.kind == Kind::Fetch || action.kind == Kind::Offload) continue;
      const Role gradient = is_exact(rank, action) ? Role::ExactGradient : Role::Gradient;
      const std::vector<Allowed> allowed = allowed_uses(action, last_block, gradient);
      std::vector<int> counts(allowed.size(), 0);
      std::set<uint16_t> parameters, gradients;
      bool told = false;
      for (const Use& use : uses_of(rank, action)) {
        const Buffer& buffer = rank.buffers[use.buffer];
        if (buffer.role == Role::Parameters) parameters.insert(buffer.index);
        if (buffer.role == Role::Gradient) gradients.insert(buffer.index);
        size_t k = buffer.stored ? allowed.size() : 0;  // nothing works in the store
        while (k < allowed.size() && !matches(allowed[k], buffer, use.access)) ++k;
        if (k < allowed.size() && ++counts[k] <= allowed[k].most) continue;
        findings.push_back({"an action uses the buffers that its name says",
                            fmt::format("{}: not {}", place(program, r, a), name_of(buffer))});
        told = true;
      }
      const bool reads = is_compute(action.kind) && action.kind != Kind::BackwardWeight &&
                         !(action.kind == Kind::Recompute && parameters.empty());
      if (reads && groups_of_block.try_emplace(action.index, parameters).first->second != parameters)
        findings.push_back({"a block reads the same parameter groups whenever it runs", place(program, r, a)});
      if (told) continue;
      for (size_t k = 0; k < allowed.size(); ++k)
        if (counts[k] < allowed[k].least)
          findings.push_back({"an action uses the buffers that its name says",
                              fmt::format("{}: no {}", place(program, r, a), to_string(allowed[k].role))});
      if (gives_gradients(action.kind) && groups_of_block[action.index] != gradients)
        findings.push_back(
            {"a backward writes a gradient of each parameter group that its block reads", place(program, r, a)});
    }
  }
}

}  // namespace shardpipe
