// Each cell of the schedule becomes the blocks of its chunk: forwards in ascending, backwards in descending order, with
// the buffers that each reads and writes. Parameters and accumulated gradients are whole here; later passes shard them.
// Where a backward is split, what its input part leaves for its weight part lives until that has run.
#include "program/compile.h"
#include "program/edit.h"
#include "program/loss_scale.h"

namespace shardpipe {
namespace {

uint64_t workspace_bytes(const StepShape& shape, const std::vector<Cell>& cells) {
  std::vector<bool> runs(shape.schedule.chunks, false), runs_whole_backward(shape.schedule.chunks, false);
  for (const Cell& cell : cells) {
    runs[cell.chunk] = true;
    if (cell.pass == Pass::Backward) runs_whole_backward[cell.chunk] = true;
  }
  uint64_t most = 0;
  for (uint16_t chunk = 0; chunk < shape.schedule.chunks; ++chunk)
    for (uint16_t b = shape.first_block[chunk]; runs[chunk] && b < shape.first_block[chunk + 1]; ++b) {
      const BlockBytes bytes = block_bytes(*shape.model, shape.model->blocks[b], shape.micro_batch);
      most = std::max(most, bytes.workspace + (runs_whole_backward[chunk] ? bytes.between : 0));
    }
  return most;
}

Kind kind_of(Pass pass) {
  switch (pass) {
    case Pass::Forward:
      return Kind::Forward;
    case Pass::Backward:
      return Kind::Backward;
    case Pass::BackwardInput:
      return Kind::BackwardInput;
    case Pass::BackwardWeight:
      return Kind::BackwardWeight;
  }
  return Kind::Forward;
}

// The buffers of block b for micro-batch m.
struct BlockBuffers {
  RankEditor& edit;
  const StepShape& shape;
  uint16_t b, m;

  const Block& block() const { return shape.model->blocks[b]; }
  Use activation(uint16_t block, Access access) const {
    return {edit.buffer({.role = Role::Activation,
                         .index = block,
                         .micro_batch = m,
                         .bytes = activation_bytes(*shape.model, shape.micro_batch)}),
            access};
  }
  Use activation_gradient(uint16_t block, Access access) const {
    return {edit.buffer({.role = Role::ActivationGradient,
                         .index = block,
                         .micro_batch = m,
                         .bytes = activation_bytes(*shape.model, shape.micro_batch)}),
            access};
  }
  Use input(Role role) const {
    return {edit.buffer({.role = role,
                         .micro_batch = m,
                         .resident = true,
                         .bytes = static_cast<uint64_t>(shape.micro_batch.tokens()) * sizeof(int32_t)}),
            Access::Read};
  }
  Use saved(Access access) const {
    return {edit.buffer({.role = Role::Saved, .index = b, .micro_batch = m, .bytes = bytes().saved}), access};
  }
  Use between(Access access) const {
    return {edit.buffer({.role = Role::Between, .index = b, .micro_batch = m, .bytes = bytes().between}), access};
  }
  BlockBytes bytes() const { return block_bytes(*shape.model, block(), shape.micro_batch); }
  Use parameters(uint16_t group) const {
    return {edit.buffer({.role = Role::Parameters,
                         .index = group,
                         .resident = true,
                         .bytes = shape.shards_of(group).padded_elements() * shape.parameter_bytes()}),
            Access::Read};
  }
  Use loss_scale() const {
    return {edit.buffer({.role = Role::LossScale, .resident = true, .bytes = sizeof(LossScale)}), Access::Read};
  }
  Use loss() const {
    return {edit.buffer({.role = Role::Loss, .micro_batch = m, .bytes = 2 * sizeof(double)}), Access::Write};
  }
  // The first micro-batch overwrites the accumulator, so that it needs no clearing.
  Use gradient(uint16_t group) const {
    const Access access = m == 0 ? Access::Write : Access::Add;
    const uint16_t use = block().kind == BlockKind::Head && shape.model->blocks.front().groups.back() == group ? 1 : 0;
    return {edit.buffer({.role = Role::Gradient,
                         .index = group,
                         .copy = use,
                         .bytes = shape.shards_of(group).padded_elements() * sizeof(float)}),
            access};
  }
};

// What a pass over the block reads, then what it writes.
std::vector<Use> uses_of_pass(const BlockBuffers& of, Kind kind) {
  const Block& block = of.block();
  const uint16_t b = of.b;
  const bool embedding = block.kind == BlockKind::Embedding, head = block.kind == BlockKind::Head;
  const bool saves = of.bytes().saved > 0, keeps = of.bytes().between > 0;
  const bool weights_alone = kind == Kind::BackwardWeight;
  std::vector<Use> uses;
  if (embedding) uses.push_back(of.input(Role::Tokens));
  if (head && !weights_alone) uses.push_back(of.input(Role::Targets));
  if (!weights_alone)
    for (const uint16_t group : block.groups) uses.push_back(of.parameters(group));
  if (b > 0) uses.push_back(of.activation(b, Access::Read));
  if (kind == Kind::Forward) {
    uses.push_back(head ? of.loss() : of.activation(b + 1, Access::Write));
    if (saves) uses.push_back(of.saved(Access::Write));
    return uses;
  }
  if (head && !weights_alone && of.shape.scales_loss()) uses.push_back(of.loss_scale());
  if (!head) uses.push_back(of.activation_gradient(b + 1, Access::Read));
  // Add: the head turns its logits into their gradient in place, a layer its gate.
  if (saves) uses.push_back(of.saved(weights_alone ? Access::Read : Access::Add));
  if (keeps && weights_alone) uses.push_back(of.between(Access::Read));
  if (b > 0 && !weights_alone) uses.push_back(of.activation_gradient(b, Access::Write));
  if (keeps && kind == Kind::BackwardInput) uses.push_back(of.between(Access::Write));
  if (gives_gradients(kind))
    for (const uint16_t group : block.groups) uses.push_back(of.gradient(group));
  return uses;
}

}  // namespace

Program pass_blocks(Program program, const StepShape& shape) {
  for (const std::vector<Cell>& cells : shape.schedule.by_rank) {
    RankEditor edit(program.by_pipeline_rank.emplace_back());
    const Use workspace{edit.buffer({.role = Role::Workspace, .bytes = workspace_bytes(shape, cells)}), Access::Write};
    for (const Cell& cell : cells) {
      const Kind kind = kind_of(cell.pass);
      for (const uint16_t b : blocks_of_pass(shape, cell)) {
        std::vector<Use> uses = uses_of_pass({edit, shape, b, cell.micro_batch}, kind);
        uses.push_back(workspace);
        edit.append({.kind = kind, .lane = Lane::Compute, .index = b, .micro_batch = cell.micro_batch}, uses);
      }
    }
  }
  return program;
}

}  // namespace shardpipe
