// What does not fit the arena is kept in the rank's store, host memory or a file (Ren et al., ZeRO-Offload,
// arXiv:2101.06840; Rajbhandari et al., ZeRO-Infinity, arXiv:2104.07857). A Fetch copies it into the arena before it is
// used, an Offload copies it back where it was changed. In between it is a buffer like any other: how many of them the
// arena holds at once is a matter of lifetimes, which place_buffers settles.
//
// Parameters come for each reader, and once more for their update. An optimizer step takes its states and masters in
// pieces, one after the other: elementwise arithmetic has the same bits in any cut. Activations leave after the forward
// that made or read them and come back for the backward, unless that follows at once. Gradients stay in the arena.
#include <algorithm>
#include <functional>
#include <utility>

#include "program/compile.h"
#include "program/edit.h"
#include "program/lifetime.h"

namespace shardpipe {
namespace {

// A buffer of the store, and its copy in the arena.
struct Staged {
  uint32_t stored, here;
};

void append_fetch(RankEditor& edit, const Staged& of) {
  edit.append({.kind = Kind::Fetch, .lane = Lane::Fetch}, {{of.stored, Access::Read}, {of.here, Access::Write}});
}
void append_offload(RankEditor& edit, const Staged& of) {
  edit.append({.kind = Kind::Offload, .lane = Lane::Offload}, {{of.here, Access::Read}, {of.stored, Access::Write}});
}

// Of a buffer of the arena: the one that takes its place in the store, and the copy number `copy` in the arena.
Staged stage(RankEditor& edit, Buffer buffer, uint16_t copy) {
  buffer.stored = true;
  const uint32_t stored = edit.buffer(buffer);
  buffer.stored = buffer.resident = false;
  buffer.copy = copy;
  return {stored, edit.buffer(buffer)};
}

void offload_parameters(RankProgram& rank, const StepShape& shape) {
  struct Fetched {
    uint16_t times = 0;
    Staged newest{};
    const Action* reader = nullptr;
  };
  std::vector<Fetched> of_group(shape.model->groups.size());
  const Staged* changed = nullptr;
  RankEditor edit(rank);
  const std::vector<Action> actions = edit.take_actions();
  for (const Action& action : actions) {
    const bool gathers_in_place = action.kind == Kind::Unshard && action.use_count == 1;  // what was just updated
    if (changed != nullptr && !gathers_in_place) append_offload(edit, *std::exchange(changed, nullptr));
    for (uint32_t u = action.first_use; u < action.first_use + action.use_count; ++u) {
      const Buffer kept = rank.buffers[rank.uses[u].buffer];
      if (!kept.resident || (kept.role != Role::Parameters && kept.role != Role::Shard)) continue;
      Fetched& fetched = of_group[kept.index];
      const Action* const before = std::exchange(fetched.reader, &action);
      const bool after_recompute = before != nullptr && before->kind == Kind::Recompute &&
                                   before->index == action.index && before->micro_batch == action.micro_batch;
      if (!after_recompute && !gathers_in_place) {
        fetched.newest = stage(edit, kept, ++fetched.times);
        append_fetch(edit, fetched.newest);
      }
      rank.uses[u].buffer = fetched.newest.here;
      if (rank.uses[u].access != Access::Read) changed = &fetched.newest;
    }
    edit.append(action);
  }
  if (changed != nullptr) append_offload(edit, *changed);
}

void offload_optimizer(RankProgram& rank, const StepShape& shape, bool sharded) {
  const auto is_state = [&](const Use& use) {
    const Role role = rank.buffers[use.buffer].role;
    return role == Role::OptimizerState || role == Role::Master;
  };
  RankEditor edit(rank);
  for (Action step : edit.take_actions()) {
    std::vector<Use> others(rank.begin_uses(step), rank.end_uses(step));
    const auto first_state = std::stable_partition(others.begin(), others.end(), std::not_fn(is_state));
    const std::vector<Use> states(first_state, others.end());
    others.erase(first_state, others.end());
    if (step.kind != Kind::OptimizerStep || states.empty()) {
      edit.append(step);
      continue;
    }
    const Shards shards = shape.shards_of(step.index);
    const uint64_t elements = sharded ? shards.shard_elements : shards.padded_elements();
    const auto of_a_piece = static_cast<uint64_t>(shape.layout.offload_piece);
    step.piece = 0;
    for (uint64_t begin = 0; begin < elements; begin += of_a_piece) {
      ++step.piece;
      std::vector<Staged> pieces;
      std::vector<Use> uses = others;
      for (const Use& use : states) {
        Buffer piece = rank.buffers[use.buffer];
        piece.bytes = piece.bytes / elements * std::min(of_a_piece, elements - begin);
        piece.copy = step.piece;
        append_fetch(edit, pieces.emplace_back(stage(edit, piece, step.piece)));
        uses.push_back({pieces.back().here, Access::Add});
      }
      edit.append(step, uses);
      for (const Staged& piece : pieces) append_offload(edit, piece);
    }
  }
}

bool is_backward(Kind kind) { return is_compute(kind) && kind != Kind::Forward; }

void offload_activations(RankProgram& rank) {
  // A backward that starts within so many blocks of the last forward would wait for what had hardly left.
  constexpr uint32_t too_near = 2;
  const std::vector<Lifetime> lifetimes = buffer_lifetimes(rank);
  const auto buffers = static_cast<uint32_t>(rank.buffers.size());
  std::vector<uint32_t> last_forward(buffers, UINT32_MAX), first_backward(buffers, UINT32_MAX), blocks_before;
  uint32_t blocks = 0;
  for (uint32_t i = 0; i < rank.actions.size(); ++i) {
    const Action& action = rank.actions[i];
    blocks_before.push_back(blocks);
    if (is_compute(action.kind)) ++blocks;
    for (const Use& use : uses_of(rank, action)) {
      if (!is_backward(action.kind))
        last_forward[use.buffer] = i;
      else if (first_backward[use.buffer] == UINT32_MAX)
        first_backward[use.buffer] = i;
    }
  }
  // What leaves goes beside the block after: a place that was free only then is not the one that this block writes to.
  std::vector<uint32_t> next_block(rank.actions.size());
  for (uint32_t i = static_cast<uint32_t>(rank.actions.size()), next = i - 1; i-- > 0;) {
    next_block[i] = next;
    if (is_compute(rank.actions[i].kind)) next = i;
  }
  RankEditor edit(rank);
  std::vector<std::vector<Staged>> leave(rank.actions.size()), come(rank.actions.size());
  std::vector<uint32_t> comes_as(buffers, UINT32_MAX);
  for (uint32_t b = 0; b < buffers; ++b) {
    const Buffer buffer = rank.buffers[b];
    if (buffer.role != Role::Saved && buffer.role != Role::Activation) continue;
    const uint32_t from = last_forward[b], to = first_backward[b];
    if (from == UINT32_MAX || to == UINT32_MAX || from > to) continue;
    if (blocks_before[to] - blocks_before[from] - 1 <= too_near) continue;
    const Staged back = stage(edit, buffer, 1);
    leave[next_block[from]].push_back({back.stored, b});
    come[to].push_back(back);
    comes_as[b] = back.here;
  }
  const std::vector<Action> actions = edit.take_actions();
  for (uint32_t i = 0; i < actions.size(); ++i) {
    for (const Staged& buffer : come[i]) append_fetch(edit, buffer);
    if (is_backward(actions[i].kind))
      for (uint32_t u = actions[i].first_use; u < actions[i].first_use + actions[i].use_count; ++u)
        if (const uint32_t b = rank.uses[u].buffer; b < buffers && comes_as[b] != UINT32_MAX)
          rank.uses[u].buffer = comes_as[b];
    edit.append(actions[i]);
    for (const Staged& buffer : leave[i]) append_offload(edit, buffer);
  }
}

}  // namespace

Program pass_offload(Program program, const StepShape& shape) {
  for (size_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    RankProgram& rank = program.by_pipeline_rank[r];
    if (shape.offload.activations) offload_activations(rank);
    if (shape.offload.parameters) offload_parameters(rank, shape);
    if (shape.offload.optimizer) offload_optimizer(rank, shape, shape.residency[r].optimizer_sharded);
  }
  return program;
}

}  // namespace shardpipe
