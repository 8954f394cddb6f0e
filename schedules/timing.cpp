#include "schedules/timing.h"

#include <algorithm>

#include "base/error.h"

namespace shardpipe {
namespace {

class Clock {
 public:
  Clock(const Schedule& schedule, std::span<const PassCosts> costs)
      : schedule_(schedule), costs_(costs), ended_(passes_ * schedule.chunks * schedule.micro_batches, not_yet) {}

  double duration(const Cell& cell) const {
    const PassCosts& costs = costs_[costs_.size() == 1 ? 0 : cell.chunk];
    switch (cell.pass) {
      case Pass::Forward:
        return costs.forward;
      case Pass::Backward:
        return costs.backward_input + costs.backward_weight;
      case Pass::BackwardInput:
        return costs.backward_input;
      case Pass::BackwardWeight:
        return costs.backward_weight;
    }
    return 0;
  }

  // From when on the cell has all that it needs; negative while it has not run.
  double ready(const Cell& cell) const {
    const uint16_t chunk = cell.chunk, m = cell.micro_batch;
    switch (cell.pass) {
      case Pass::Forward:
        return chunk == 0 ? 0 : arrives(end(Pass::Forward, chunk - 1, m), chunk - 1, chunk);
      case Pass::BackwardWeight:
        return end(Pass::BackwardInput, chunk, m);
      case Pass::Backward:
      case Pass::BackwardInput: {
        const double own = end(Pass::Forward, chunk, m);
        if (chunk + 1 == schedule_.chunks || own < 0) return own;
        const double next = arrives(input_gradient(chunk + 1, m), chunk + 1, chunk);
        return next < 0 ? next : std::max(own, next);
      }
    }
    return 0;
  }

  void finish(const Cell& cell, double time) { slot(cell.pass, cell.chunk, cell.micro_batch) = time; }

 private:
  static constexpr size_t passes_ = 4;
  static constexpr double not_yet = -1;

  double& slot(Pass pass, size_t chunk, size_t m) {
    return ended_[(static_cast<size_t>(pass) * schedule_.chunks + chunk) * schedule_.micro_batches + m];
  }
  double end(Pass pass, size_t chunk, size_t m) const {
    return ended_[(static_cast<size_t>(pass) * schedule_.chunks + chunk) * schedule_.micro_batches + m];
  }
  double input_gradient(size_t chunk, size_t m) const {
    return std::max(end(Pass::Backward, chunk, m), end(Pass::BackwardInput, chunk, m));
  }
  double arrives(double sent, size_t from, size_t to) const {
    if (sent < 0 || schedule_.rank_of_chunk[from] == schedule_.rank_of_chunk[to]) return sent;
    return sent + costs_[costs_.size() == 1 ? 0 : from].transfer;
  }

  const Schedule& schedule_;
  std::span<const PassCosts> costs_;
  std::vector<double> ended_;
};

}  // namespace

CellTimes time_cells(const Schedule& schedule, std::span<const PassCosts> costs, double overlap_saving) {
  check_invariant(costs.size() == 1 || costs.size() == schedule.chunks, "costs of {} chunks for {}", costs.size(),
                  schedule.chunks);
  Clock clock(schedule, costs);
  CellTimes times(schedule.by_rank.size());
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t rank = 0; rank < times.size(); ++rank) {
      const std::vector<Cell>& cells = schedule.by_rank[rank];
      while (times[rank].size() < cells.size()) {
        const size_t next = times[rank].size();
        const size_t together = cells[next].with_next && next + 1 < cells.size() ? 2 : 1;
        double begin = next == 0 ? 0 : times[rank].back().end, duration = 0;
        bool ready = true;
        for (size_t i = next; i < next + together; ++i) {
          const double since = clock.ready(cells[i]);
          ready = ready && since >= 0;
          begin = std::max(begin, since);
          duration += clock.duration(cells[i]);
        }
        if (!ready) break;
        if (together == 2) duration -= overlap_saving;
        for (size_t i = next; i < next + together; ++i) {
          clock.finish(cells[i], begin + duration);
          times[rank].push_back({begin, begin + duration});
        }
        progress = true;
      }
    }
  }
  for (size_t rank = 0; rank < times.size(); ++rank)
    if (times[rank].size() < schedule.by_rank[rank].size())  // arguments of check_invariant are always evaluated
      throw InvariantError(fmt::format("schedule {}: rank {} waits for ever at {}", schedule.name, rank,
                                       to_string(schedule.by_rank[rank][times[rank].size()])));
  return times;
}

}  // namespace shardpipe
