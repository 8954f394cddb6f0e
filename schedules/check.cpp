#include "schedules/check.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "schedules/check_passes.h"
#include "schedules/progress.h"

namespace shardpipe {
namespace {

using Problems = std::vector<ScheduleProblem>;
using Need = QueueItem::Need;

// Where each pass of a schedule without other problems stands, as an item: one a cell, or one for two that run
// together.
class Items {
 public:
  explicit Items(const Schedule& schedule)
      : schedule_(schedule), of_output_(cells_of_a_pass()), of_input_gradient_(cells_of_a_pass()) {
    queues_.resize(schedule.by_rank.size());
    for (size_t rank = 0; rank < schedule.by_rank.size(); ++rank) {
      const std::vector<Cell>& cells = schedule.by_rank[rank];
      for (size_t i = 0; i < cells.size(); ++i) {
        if (i == 0 || !cells[i - 1].with_next) {
          queues_[rank].push_back(static_cast<uint32_t>(items_.size()));
          items_.push_back({.rank = static_cast<int>(rank),
                            .position = static_cast<int>(i),
                            .queue = static_cast<uint32_t>(rank),
                            .needs = {}});
        }
        const Made made{static_cast<uint32_t>(items_.size() - 1), static_cast<int>(i)};
        if (cells[i].pass == Pass::Forward) of_output_[index(cells[i].chunk, cells[i].micro_batch)] = made;
        if (cells[i].pass == Pass::Backward || cells[i].pass == Pass::BackwardInput)
          of_input_gradient_[index(cells[i].chunk, cells[i].micro_batch)] = made;
      }
    }
    for (size_t rank = 0, item = 0; rank < schedule.by_rank.size(); ++rank)
      for (size_t i = 0; i < schedule.by_rank[rank].size(); ++i) {
        add_needs(schedule.by_rank[rank][i], static_cast<int>(i), items_[item].needs);
        if (!schedule.by_rank[rank][i].with_next) ++item;
      }
  }

  std::optional<Deadlock> deadlock() const {
    return find_deadlock(items_, queues_, [this](int rank, int position) {
      return to_string(schedule_.by_rank[static_cast<size_t>(rank)][static_cast<size_t>(position)]);
    });
  }

 private:
  struct Made {
    uint32_t item = no_item;
    int position = 0;
  };
  size_t cells_of_a_pass() const { return size_t{schedule_.chunks} * schedule_.micro_batches; }
  size_t index(size_t chunk, size_t micro_batch) const { return chunk * schedule_.micro_batches + micro_batch; }

  void add_needs(const Cell& cell, int position, std::vector<Need>& needs) const {
    const auto need = [&](const std::vector<Made>& what, size_t chunk) {
      const Made& made = what[index(chunk, cell.micro_batch)];
      needs.push_back({made.item, position, made.position});
    };
    switch (cell.pass) {
      case Pass::Forward:
        if (cell.chunk > 0) need(of_output_, cell.chunk - 1u);
        return;
      case Pass::Backward:
      case Pass::BackwardInput:
        need(of_output_, cell.chunk);
        if (cell.chunk + 1 < schedule_.chunks) need(of_input_gradient_, cell.chunk + 1u);
        return;
      case Pass::BackwardWeight:
        need(of_input_gradient_, cell.chunk);
        return;
    }
  }

  const Schedule& schedule_;
  std::vector<Made> of_output_, of_input_gradient_;  // by chunk, then micro-batch
  std::vector<QueueItem> items_;
  std::vector<std::vector<uint32_t>> queues_;
};

}  // namespace

std::string to_string(const ScheduleProblem& problem) {
  if (problem.rank < 0) return problem.text;
  if (problem.position < 0) return fmt::format("rank {}: {}", problem.rank, problem.text);
  return fmt::format("rank {}, cell {}: {}", problem.rank, problem.position + 1, problem.text);
}

std::vector<ScheduleProblem> problems_of(const Schedule& schedule) {
  std::vector<std::vector<int>> positions;
  for (const std::vector<Cell>& cells : schedule.by_rank) {
    std::vector<int>& of_rank = positions.emplace_back(cells.size());
    std::iota(of_rank.begin(), of_rank.end(), 0);
  }
  Problems problems = problems_of_passes(schedule, positions);
  if (!problems.empty()) return problems;
  if (const auto deadlock = Items(schedule).deadlock())
    problems.push_back({"deadlock", deadlock->rank, deadlock->position, deadlock->cycle});
  return problems;
}

std::vector<uint32_t> peak_in_flight(const Schedule& schedule) {
  std::vector<uint32_t> peaks;
  for (const std::vector<Cell>& cells : schedule.by_rank) {
    uint32_t now = 0, most = 0;
    for (const Cell& cell : cells) {
      if (cell.pass == Pass::Forward) most = std::max(most, ++now);
      if (cell.pass == Pass::Backward || cell.pass == Pass::BackwardWeight) --now;
    }
    peaks.push_back(most);
  }
  return peaks;
}

}  // namespace shardpipe
