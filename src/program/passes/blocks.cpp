// Each cell of the schedule becomes the blocks of its chunk: forwards in ascending, backwards in descending order, with
// the buffers that each reads and writes. Parameters and accumulated gradients are whole here; later passes shard them.
#include "program/compile.h"
#include "program/edit.h"

namespace shardpipe {
namespace {

uint64_t workspace_bytes(const StepShape& shape, const std::vector<uint16_t>& chunks) {
  uint64_t most = 0;
  for (const uint16_t chunk : chunks)
    for (uint16_t b = shape.first_block[chunk]; b < shape.first_block[chunk + 1]; ++b) {
      const BlockBytes bytes = block_bytes(*shape.model, shape.model->blocks[b], shape.micro_batch);
      most = std::max(most, bytes.between + bytes.workspace);
    }
  return most;
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
    return {edit.buffer({.role = Role::Saved,
                         .index = b,
                         .micro_batch = m,
                         .bytes = block_bytes(*shape.model, block(), shape.micro_batch).saved}),
            access};
  }
  Use parameters(uint16_t group) const {
    return {edit.buffer({.role = Role::Parameters,
                         .index = group,
                         .resident = true,
                         .bytes = shape.shards_of(group).padded_elements() * sizeof(float)}),
            Access::Read};
  }
  // The first micro-batch overwrites the accumulator, so that it needs no clearing.
  Use gradient(uint16_t group, Access access) const {
    const uint16_t use = block().kind == BlockKind::Head && shape.model->blocks.front().groups.back() == group ? 1 : 0;
    return {edit.buffer({.role = Role::Gradient,
                         .index = group,
                         .copy = use,
                         .bytes = shape.shards_of(group).padded_elements() * sizeof(float)}),
            access};
  }
};

}  // namespace

Program pass_blocks(Program program, const StepShape& shape) {
  const Model& model = *shape.model;
  for (const std::vector<Cell>& cells : shape.schedule.by_rank) {
    const auto rank_number = static_cast<uint16_t>(program.by_pipeline_rank.size());
    RankEditor edit(program.by_pipeline_rank.emplace_back());
    std::vector<uint16_t> chunks;
    for (uint16_t chunk = 0; chunk < shape.schedule.chunks; ++chunk)
      if (shape.schedule.rank_of_chunk[chunk] == rank_number) chunks.push_back(chunk);
    const Use workspace{edit.buffer({.role = Role::Workspace, .bytes = workspace_bytes(shape, chunks)}), Access::Write};

    for (const Cell& cell : cells) {
      const uint16_t first = shape.first_block[cell.chunk], last = shape.first_block[cell.chunk + 1] - 1;
      for (uint16_t i = first; i <= last; ++i) {
        const bool forward = cell.pass == Pass::Forward;
        const auto b = static_cast<uint16_t>(forward ? i : last - (i - first));
        const Block& block = model.blocks[b];
        const BlockBuffers of{edit, shape, b, cell.micro_batch};
        std::vector<Use> uses;
        if (block.kind == BlockKind::Embedding) uses.push_back(of.input(Role::Tokens));
        if (block.kind == BlockKind::Head) uses.push_back(of.input(Role::Targets));
        for (const uint16_t group : block.groups) uses.push_back(of.parameters(group));
        if (b > 0) uses.push_back(of.activation(b, Access::Read));
        if (forward) {
          if (block.kind == BlockKind::Head)
            uses.push_back(
                {edit.buffer({.role = Role::Loss, .micro_batch = cell.micro_batch, .bytes = 2 * sizeof(double)}),
                 Access::Write});
          else
            uses.push_back(of.activation(b + 1, Access::Write));
          if (block_bytes(model, block, shape.micro_batch).saved > 0) uses.push_back(of.saved(Access::Write));
        } else {
          if (block.kind != BlockKind::Head) uses.push_back(of.activation_gradient(b + 1, Access::Read));
          // Add: the head turns its logits into their gradient in place.
          if (block_bytes(model, block, shape.micro_batch).saved > 0) uses.push_back(of.saved(Access::Add));
          if (b > 0) uses.push_back(of.activation_gradient(b, Access::Write));
          for (const uint16_t group : block.groups)
            uses.push_back(of.gradient(group, cell.micro_batch == 0 ? Access::Write : Access::Add));
        }
        uses.push_back(workspace);
        edit.append({.kind = forward ? Kind::Forward : Kind::Backward,
                     .lane = Lane::Compute,
                     .index = b,
                     .micro_batch = cell.micro_batch},
                    uses);
      }
    }
  }
  return program;
}

}  // namespace shardpipe
