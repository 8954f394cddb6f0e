// A block that computes again what its backward needs keeps less since its forward, and a Recompute before each of its
// backwards makes the rest (Chen et al., arXiv:1604.06174; selective: Korthikanti et al., arXiv:2205.05198). It reads
// no gradient, so it runs while the backward still waits for one. Its result lives until the block's last backward
// part; the forward, which needs the same memory for a moment, has it in its workspace.
#include <algorithm>

#include "program/compile.h"
#include "program/edit.h"

namespace shardpipe {
namespace {

// What the Recompute of a block reads: of the backward's uses those of a forward, where it starts from the block's
// input; else what was kept.
bool reads(Recompute recompute, Role role) {
  if (recompute == Recompute::Selective) return role == Role::Saved;
  return role == Role::Targets || role == Role::Parameters || role == Role::Activation;
}

}  // namespace

Program pass_recompute(Program program, const StepShape& shape) {
  for (RankProgram& rank : program.by_pipeline_rank) {
    RankEditor edit(rank);
    for (Action action : edit.take_actions()) {
      const Recompute recompute = is_compute(action.kind) ? shape.recompute[action.index] : Recompute::None;
      const BlockBytes bytes =
          recompute == Recompute::None
              ? BlockBytes{}
              : block_bytes(*shape.model, shape.model->blocks[action.index], shape.micro_batch, recompute);
      if (bytes.recomputed == 0) {
        edit.append(action);
        continue;
      }
      std::vector<Use> uses;
      Use workspace{};
      for (const Use& use : uses_of(rank, action)) {
        Buffer& buffer = rank.buffers[use.buffer];
        if (buffer.role == Role::Saved) buffer.bytes = bytes.saved;
        if (buffer.role == Role::Workspace) workspace = use;
        if (buffer.role != Role::Saved || bytes.saved > 0) uses.push_back(use);
      }
      if (action.kind == Kind::Forward) {
        Buffer& scratch = rank.buffers[workspace.buffer];
        scratch.bytes = std::max(scratch.bytes, bytes.workspace + bytes.recomputed);
        edit.append(action, uses);
        continue;
      }
      const uint32_t recomputed = edit.buffer({.role = Role::Recomputed,
                                               .index = action.index,
                                               .micro_batch = action.micro_batch,
                                               .bytes = bytes.recomputed});
      if (action.kind != Kind::BackwardWeight) {
        std::vector<Use> of_recompute;
        for (const Use& use : uses) {
          const Buffer& buffer = rank.buffers[use.buffer];
          const bool of_input = buffer.role != Role::Activation || buffer.index == action.index;
          if (reads(recompute, buffer.role) && of_input) of_recompute.push_back({use.buffer, Access::Read});
        }
        of_recompute.push_back({recomputed, Access::Write});
        of_recompute.push_back(workspace);
        edit.append({.kind = Kind::Recompute, .index = action.index, .micro_batch = action.micro_batch}, of_recompute);
      }
      uses.push_back({recomputed, action.kind == Kind::BackwardWeight ? Access::Read : Access::Add});
      edit.append(action, uses);
    }
  }
  return program;
}

}  // namespace shardpipe
