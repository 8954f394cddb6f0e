#include "schedules/lowered.h"

#include <array>
#include <set>
#include <tuple>

#include "base/error.h"

namespace shardpipe {
namespace {

LoweredAction pass_of(const Cell& cell) {
  return {static_cast<LoweredKind>(cell.pass), cell.chunk, cell.micro_batch, cell.with_next};
}

LoweredSchedule without_actions(const Schedule& schedule) {
  return {.name = schedule.name,
          .chunks = schedule.chunks,
          .micro_batches = schedule.micro_batches,
          .rank_of_chunk = schedule.rank_of_chunk,
          .by_rank = std::vector<std::vector<LoweredAction>>(schedule.by_rank.size())};
}

// Cells [begin, end of what runs together with it).
size_t end_of_unit(const std::vector<Cell>& cells, size_t begin) {
  while (cells[begin].with_next && begin + 1 < cells.size()) ++begin;
  return begin + 1;
}

class Lowering {
 public:
  Lowering(const Schedule& schedule, Messages messages)
      : schedule_(schedule), messages_(messages), lowered_(without_actions(schedule)) {}

  LoweredSchedule lower() {
    std::vector<size_t> next(schedule_.by_rank.size(), 0);
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t rank = 0; rank < next.size(); ++rank) {
        const std::vector<Cell>& cells = schedule_.by_rank[rank];
        if (next[rank] == cells.size()) continue;
        const size_t begin = next[rank], end = end_of_unit(cells, begin);
        if (messages_ == Messages::WhenMade && !ready(cells, begin, end)) continue;
        add(rank, begin, end);
        next[rank] = end;
        progress = true;
      }
    }
    for (size_t rank = 0; rank < next.size(); ++rank)
      if (next[rank] < schedule_.by_rank[rank].size())
        throw InvariantError(fmt::format("schedule {}: rank {} waits for ever at {}", schedule_.name, rank,
                                         to_string(schedule_.by_rank[rank][next[rank]])));
    return std::move(lowered_);
  }

 private:
  // The chunk whose forward, or whose input gradient, the cell reads; -1: none but its own.
  int reads_from(const Cell& cell) const {
    if (cell.pass == Pass::Forward) return cell.chunk - 1;
    const bool needs_gradient = cell.pass != Pass::BackwardWeight && cell.chunk + 1 < schedule_.chunks;
    return needs_gradient ? cell.chunk + 1 : -1;
  }
  int gives_to(const Cell& cell) const {
    if (cell.pass == Pass::Forward) return cell.chunk + 1 < schedule_.chunks ? cell.chunk + 1 : -1;
    return cell.pass == Pass::BackwardWeight ? -1 : cell.chunk - 1;
  }
  uint16_t rank_of(int chunk) const { return schedule_.rank_of_chunk[static_cast<size_t>(chunk)]; }

  bool ready(const std::vector<Cell>& cells, size_t begin, size_t end) const {
    for (size_t i = begin; i < end; ++i) {
      const Cell& cell = cells[i];
      const bool forward = cell.pass == Pass::Forward;
      if (const int from = reads_from(cell); from >= 0 && !made_.contains({forward, from, cell.micro_batch}))
        return false;
      if (!forward && !made_.contains({true, cell.chunk, cell.micro_batch})) return false;
      if (cell.pass == Pass::BackwardWeight && !made_.contains({false, cell.chunk, cell.micro_batch})) return false;
    }
    return true;
  }

  void add(size_t rank, size_t begin, size_t end) {
    const std::vector<Cell>& cells = schedule_.by_rank[rank];
    std::vector<LoweredAction>& actions = lowered_.by_rank[rank];
    if (messages_ == Messages::AtUse)
      for (size_t i = begin; i < end; ++i)
        if (const int from = reads_from(cells[i]); from >= 0 && rank_of(from) != rank)
          actions.push_back(
              {cells[i].pass == Pass::Forward ? LoweredKind::ReceiveForward : LoweredKind::ReceiveBackward,
               cells[i].chunk, cells[i].micro_batch});
    for (size_t i = begin; i < end; ++i) {
      actions.push_back(pass_of(cells[i]));
      if (cells[i].pass != Pass::BackwardWeight)
        made_.insert({cells[i].pass == Pass::Forward, cells[i].chunk, cells[i].micro_batch});
    }
    for (size_t i = begin; i < end; ++i) {
      const bool forward = cells[i].pass == Pass::Forward;
      const int to = gives_to(cells[i]);
      if (to < 0 || rank_of(to) == rank) continue;
      actions.push_back(
          {forward ? LoweredKind::SendForward : LoweredKind::SendBackward, cells[i].chunk, cells[i].micro_batch});
      if (messages_ == Messages::WhenMade)
        lowered_.by_rank[rank_of(to)].push_back({forward ? LoweredKind::ReceiveForward : LoweredKind::ReceiveBackward,
                                                 static_cast<uint16_t>(to), cells[i].micro_batch});
    }
  }

  const Schedule& schedule_;
  Messages messages_;
  LoweredSchedule lowered_;
  std::set<std::tuple<bool, int, int>> made_;  // outputs (true) and input gradients (false) of chunk, micro-batch
};

}  // namespace

std::string to_string(const LoweredAction& action) {
  static constexpr std::array<std::string_view, 11> names{
      "F", "B", "I", "W", "UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
  const std::string_view name = names[static_cast<size_t>(action.kind)];
  return action.micro_batch == every_micro_batch ? fmt::format("{}{}", action.chunk, name)
                                                 : fmt::format("{}{}{}", action.chunk, name, action.micro_batch);
}

Schedule without_movement(const LoweredSchedule& lowered) {
  Schedule schedule{.name = lowered.name,
                    .chunks = lowered.chunks,
                    .micro_batches = lowered.micro_batches,
                    .rank_of_chunk = lowered.rank_of_chunk,
                    .by_rank = {}};
  for (const std::vector<LoweredAction>& actions : lowered.by_rank) {
    std::vector<Cell>& cells = schedule.by_rank.emplace_back();
    for (const LoweredAction& action : actions)
      if (is_pass(action.kind))
        cells.push_back({static_cast<Pass>(action.kind), action.chunk, action.micro_batch, action.with_next});
  }
  return schedule;
}

LoweredSchedule without_messages(const Schedule& schedule) {
  LoweredSchedule lowered = without_actions(schedule);
  for (size_t rank = 0; rank < schedule.by_rank.size(); ++rank)
    for (const Cell& cell : schedule.by_rank[rank]) lowered.by_rank[rank].push_back(pass_of(cell));
  return lowered;
}

LoweredSchedule with_messages(const Schedule& schedule, Messages messages) {
  return Lowering(schedule, messages).lower();
}

}  // namespace shardpipe
