// Where consecutive chunks lie on different ranks, a Send and a Receive. Both ends of a message are placed at the time
// at which a simulation of the schedule has its bytes ready, so all ranks hold their messages in sub-orders of one
// global order that respects every dependency. Placed "where used" instead, 1F1B deadlocks on one in-order lane as soon
// as there are two micro-batches.
//
// With such an order the program cannot deadlock however few lanes a transport offers: of all actions not yet done, the
// one that is first in the global order stands first on each rank that takes part in it.
#include <fmt/format.h>

#include <algorithm>

#include "program/compile.h"
#include "program/edit.h"
#include "schedules/timing.h"

namespace shardpipe {
namespace {

// In shares of the whole model's forward. A chunk of the embedding alone, which has no FLOPs, still takes its time: an
// action must end after it begins, or its message would be placed before it.
std::vector<PassCosts> costs_of_chunks(const StepShape& shape) {
  double all = 0;
  for (const Block& block : shape.model->blocks) all += forward_flops(*shape.model, block, shape.micro_batch);
  std::vector<PassCosts> costs;
  for (uint16_t chunk = 0; chunk < shape.schedule.chunks; ++chunk) {
    double own = 0, again = 0;
    for (uint16_t b = shape.first_block[chunk]; b < shape.first_block[chunk + 1]; ++b) {
      own += forward_flops(*shape.model, shape.model->blocks[b], shape.micro_batch);
      again += recompute_flops(*shape.model, shape.model->blocks[b], shape.micro_batch, shape.recompute[b]);
    }
    const double share = own / all + 1e-6;
    costs.push_back({.forward = share, .backward_input = share + again / all, .backward_weight = share});
  }
  return costs;
}

// An action at its place in the global order. Messages come before the arithmetic that begins as they arrive.
struct Placed {
  double time;
  bool compute;
  uint32_t order;  // of a message: one number for both its ends
  Action action;
  std::vector<Use> uses;  // of a message
};

}  // namespace

Program pass_transfers(Program program, const StepShape& shape) {
  const Schedule& schedule = shape.schedule;
  const CellTimes times = time_cells(schedule, costs_of_chunks(shape));

  std::vector<RankEditor> edits;
  for (RankProgram& rank : program.by_pipeline_rank) edits.emplace_back(rank);
  std::vector<std::vector<Placed>> placed(edits.size());
  uint32_t messages = 0;
  for (uint16_t rank = 0; rank < edits.size(); ++rank) {
    const std::vector<Action> actions = edits[rank].take_actions();
    size_t next = 0;
    for (size_t c = 0; c < times[rank].size(); ++c) {
      const Cell& cell = schedule.by_rank[rank][c];
      const uint16_t first = shape.first_block[cell.chunk], end = shape.first_block[cell.chunk + 1];
      for (size_t b = 0; b < blocks_of_pass(shape, cell).size(); ++b)
        placed[rank].push_back({times[rank][c].begin, true, 0, actions[next++], {}});

      // The message that this cell's output becomes, when the next chunk lives elsewhere.
      if (cell.pass == Pass::BackwardWeight) continue;
      const bool forward = cell.pass == Pass::Forward;
      if (forward ? cell.chunk + 1 == schedule.chunks : cell.chunk == 0) continue;
      const uint16_t to = schedule.rank_of_chunk[forward ? cell.chunk + 1 : cell.chunk - 1];
      if (to == rank) continue;
      const uint16_t block = forward ? end : first;  // whose input activation, or its gradient
      const Buffer meaning{.role = forward ? Role::Activation : Role::ActivationGradient,
                           .index = block,
                           .micro_batch = cell.micro_batch,
                           .bytes = activation_bytes(*shape.model, shape.micro_batch)};
      const uint16_t group =
          group_index(program, {.name = fmt::format("{} {}>{}", forward ? "forward" : "backward", rank, to),
                                .pipeline_ranks = {rank, to},
                                .replicas = Replicas::Own});
      const Action message{.index = block, .micro_batch = cell.micro_batch, .group = group};
      Action send = message, receive = message;
      send.kind = Kind::Send;
      send.lane = forward ? Lane::SendForward : Lane::SendBackward;
      receive.kind = Kind::Receive;
      receive.lane = forward ? Lane::ReceiveForward : Lane::ReceiveBackward;
      const double time = times[rank][c].end;
      placed[rank].push_back({time, false, messages, send, {{edits[rank].buffer(meaning), Access::Read}}});
      placed[to].push_back({time, false, messages, receive, {{edits[to].buffer(meaning), Access::Write}}});
      ++messages;
    }
  }
  for (uint16_t rank = 0; rank < edits.size(); ++rank) {
    // Stable: the blocks of one cell keep their order.
    std::ranges::stable_sort(placed[rank], {}, [](const Placed& p) { return std::tuple(p.time, p.compute, p.order); });
    for (const Placed& p : placed[rank])
      p.uses.empty() ? edits[rank].append(p.action) : edits[rank].append(p.action, p.uses);
  }
  return program;
}

}  // namespace shardpipe
