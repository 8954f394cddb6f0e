// The rules of check.h for a schedule whose movement is written out.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "schedules/check.h"
#include "schedules/check_passes.h"
#include "schedules/progress.h"

namespace shardpipe {
namespace {

using Problems = std::vector<ScheduleProblem>;

struct Place {
  int rank = -1, position = -1;
};

uint64_t key(LoweredKind kind, size_t chunk, size_t micro_batch) {
  return static_cast<uint64_t>(kind) << 32 | chunk << 16 | micro_batch;
}

class Lowered {
 public:
  Lowered(const LoweredSchedule& schedule, LoweredChannels model) : schedule_(schedule), model_(model) {}

  Problems check() {
    if (!check_passes()) return std::move(problems_);
    find_places();
    check_messages();
    const bool shards = any(LoweredKind::Unshard, LoweredKind::Reshard), reduces = any(LoweredKind::ReduceGrad);
    for (uint16_t chunk = 0; chunk < schedule_.chunks; ++chunk) {
      if (shards) check_parameters(chunk);
      if (reduces) check_reduction(chunk);
    }
    if (problems_.empty()) check_progress();
    return std::move(problems_);
  }

 private:
  template <typename... Args>
  void problem(std::string rule, Place place, fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back({std::move(rule), place.rank, place.position, fmt::format(text, std::forward<Args>(args)...)});
  }
  int rank_of(size_t chunk) const { return schedule_.rank_of_chunk[chunk]; }
  const std::vector<LoweredAction>& actions_of(size_t chunk) const {
    return schedule_.by_rank[schedule_.rank_of_chunk[chunk]];
  }

  template <typename Visit>  // (action, place)
  void for_each_action(const Visit& visit) const {
    for (size_t rank = 0; rank < schedule_.by_rank.size(); ++rank)
      for (size_t i = 0; i < schedule_.by_rank[rank].size(); ++i)
        visit(schedule_.by_rank[rank][i], Place{static_cast<int>(rank), static_cast<int>(i)});
  }

  bool check_passes() {
    std::vector<std::vector<int>> positions(schedule_.by_rank.size());
    for_each_action([&](const LoweredAction& action, Place place) {
      if (is_pass(action.kind)) positions[static_cast<size_t>(place.rank)].push_back(place.position);
      const std::vector<LoweredAction>& actions = schedule_.by_rank[static_cast<size_t>(place.rank)];
      const auto next = static_cast<size_t>(place.position) + 1;
      if (action.with_next && (!is_pass(action.kind) || (next < actions.size() && !is_pass(actions[next].kind))))
        problem("pair", place, "{} runs together with what follows: allowed are two passes", to_string(action));
    });
    const Problems of_passes = problems_of_passes(without_movement(schedule_), positions);
    problems_.insert(problems_.end(), of_passes.begin(), of_passes.end());
    if (!problems_.empty()) return false;
    for_each_action([&](const LoweredAction& action, Place place) {
      if (action.chunk >= schedule_.chunks)
        problem("placement", place, "{}: chunks are 0 to {}", to_string(action), schedule_.chunks - 1);
      else if (rank_of(action.chunk) != place.rank)
        problem("placement", place, "{}: chunk {} is on rank {}", to_string(action), action.chunk,
                rank_of(action.chunk));
    });
    return problems_.empty();
  }

  void find_places() {
    for_each_action([&](const LoweredAction& action, Place place) {
      const auto [known, is_new] = places_.insert({key(action.kind, action.chunk, action.micro_batch), place});
      if (!is_new && (is_send(action.kind) || is_receive(action.kind)))
        problem("message", place, "{}: it stands in cell {} already", to_string(action), known->second.position + 1);
    });
  }
  Place place_of(LoweredKind kind, size_t chunk, size_t micro_batch) const {
    const auto found = places_.find(key(kind, chunk, micro_batch));
    return found == places_.end() ? Place{} : found->second;
  }
  Place input_gradient(size_t chunk, size_t micro_batch) const {
    const Place whole = place_of(LoweredKind::Backward, chunk, micro_batch);
    return whole.rank >= 0 ? whole : place_of(LoweredKind::BackwardInput, chunk, micro_batch);
  }

  void check_messages() {
    for_each_action([&](const LoweredAction& action, Place place) {
      if (!is_send(action.kind) && !is_receive(action.kind)) return;
      if (action.micro_batch >= schedule_.micro_batches)
        return problem("message", place, "{}: micro-batches are 0 to {}", to_string(action),
                       schedule_.micro_batches - 1);
      // A forward message leaves a chunk for the one after it; a backward one the other way.
      const bool up = action.kind == LoweredKind::SendForward || action.kind == LoweredKind::ReceiveBackward;
      const int other = action.chunk + (up ? 1 : -1);
      if (other < 0 || other == schedule_.chunks)
        problem("message", place, "{}: there is no chunk {} it", to_string(action), up ? "after" : "before");
      else if (rank_of(static_cast<size_t>(other)) == place.rank)
        problem("message", place, "{}: chunk {} is on this rank too", to_string(action), other);
    });
    const auto need = [&](LoweredKind kind, size_t chunk, size_t micro_batch) {
      if (place_of(kind, chunk, micro_batch).rank >= 0) return;
      const LoweredAction action{kind, static_cast<uint16_t>(chunk), static_cast<uint16_t>(micro_batch)};
      problem("message", {rank_of(chunk), -1}, "{} is missing", to_string(action));
    };
    for (size_t chunk = 0; chunk + 1 < schedule_.chunks; ++chunk)
      for (size_t m = 0; m < schedule_.micro_batches && rank_of(chunk) != rank_of(chunk + 1); ++m) {
        need(LoweredKind::SendForward, chunk, m);
        need(LoweredKind::ReceiveForward, chunk + 1, m);
        need(LoweredKind::SendBackward, chunk + 1, m);
        need(LoweredKind::ReceiveBackward, chunk, m);
      }
  }

  template <typename... Kinds>
  bool any(Kinds... kinds) const {
    return std::ranges::any_of(schedule_.by_rank, [&](const std::vector<LoweredAction>& actions) {
      return std::ranges::any_of(actions, [&](const LoweredAction& action) { return ((action.kind == kinds) || ...); });
    });
  }

  void check_parameters(uint16_t chunk) {
    const std::vector<LoweredAction>& actions = actions_of(chunk);
    bool gathered = false;
    for (size_t i = 0; i < actions.size(); ++i) {
      const LoweredAction& action = actions[i];
      if (action.chunk != chunk) continue;
      const Place place{rank_of(chunk), static_cast<int>(i)};
      if (action.kind == LoweredKind::Unshard) {
        if (gathered) problem("parameters", place, "{}: chunk {} is gathered already", to_string(action), chunk);
        gathered = true;
      } else if (action.kind == LoweredKind::Reshard) {
        if (!gathered) problem("parameters", place, "{}: chunk {} is not gathered", to_string(action), chunk);
        gathered = false;
      } else if (is_pass(action.kind) && action.kind != LoweredKind::BackwardWeight && !gathered) {
        problem("parameters", place, "{}: chunk {} is not gathered", to_string(action), chunk);
      }
    }
  }

  void check_reduction(uint16_t chunk) {
    const std::vector<LoweredAction>& actions = actions_of(chunk);
    int reduced = -1, added = -1;
    for (size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].chunk != chunk) continue;
      if (actions[i].kind == LoweredKind::ReduceGrad) reduced = static_cast<int>(i);
      if (actions[i].kind == LoweredKind::Backward || actions[i].kind == LoweredKind::BackwardWeight)
        added = static_cast<int>(i);
    }
    if (reduced < 0)
      problem("reduction", {rank_of(chunk), -1}, "the gradients of chunk {} are never reduced", chunk);
    else if (reduced < added)
      problem("reduction", {rank_of(chunk), reduced}, "the last reduction of chunk {} stands before {}, cell {}", chunk,
              to_string(actions[static_cast<size_t>(added)]), added + 1);
  }

  // Which of a rank's queues. Gathers and reductions wait for nobody here, and nobody for them.
  uint32_t lane_of(LoweredKind kind) const {
    if (model_.lanes == 1 || (!is_send(kind) && !is_receive(kind))) return 0;
    const bool backward = kind == LoweredKind::SendBackward || kind == LoweredKind::ReceiveBackward;
    return (is_send(kind) ? 1 : 2) + (model_.lanes == 4 && backward ? 2 : 0);
  }

  void check_progress() {
    constexpr uint32_t lanes = 5;
    std::vector<QueueItem> items;
    std::vector<std::vector<uint32_t>> queues(schedule_.by_rank.size() * lanes), item_of(schedule_.by_rank.size());
    bool together = false;
    for_each_action([&](const LoweredAction& action, Place place) {
      if (!together) {
        const uint32_t queue = static_cast<uint32_t>(place.rank) * lanes + lane_of(action.kind);
        queues[queue].push_back(static_cast<uint32_t>(items.size()));
        items.push_back({.rank = place.rank, .position = place.position, .queue = queue, .needs = {}});
      }
      item_of[static_cast<size_t>(place.rank)].push_back(static_cast<uint32_t>(items.size() - 1));
      together = action.with_next;
    });
    const auto item_at = [&](Place place) {
      return item_of[static_cast<size_t>(place.rank)][static_cast<size_t>(place.position)];
    };
    const auto need = [&](Place waiter, Place needed) {
      items[item_at(waiter)].needs.push_back({item_at(needed), waiter.position, needed.position});
    };

    std::map<std::tuple<int, int, bool>, std::vector<std::pair<Place, Place>>> channels;  // sends and their receives
    for_each_action([&](const LoweredAction& action, Place place) {
      const size_t chunk = action.chunk, m = action.micro_batch;
      switch (action.kind) {
        case LoweredKind::Forward:
          if (chunk > 0)
            need(place, rank_of(chunk - 1) == place.rank ? place_of(LoweredKind::Forward, chunk - 1, m)
                                                         : place_of(LoweredKind::ReceiveForward, chunk, m));
          return;
        case LoweredKind::Backward:
        case LoweredKind::BackwardInput:
          need(place, place_of(LoweredKind::Forward, chunk, m));
          if (chunk + 1 < schedule_.chunks)
            need(place, rank_of(chunk + 1) == place.rank ? input_gradient(chunk + 1, m)
                                                         : place_of(LoweredKind::ReceiveBackward, chunk, m));
          return;
        case LoweredKind::BackwardWeight:
          return need(place, input_gradient(chunk, m));
        case LoweredKind::SendForward:
        case LoweredKind::SendBackward: {
          const bool forward = action.kind == LoweredKind::SendForward;
          const Place receive = forward ? place_of(LoweredKind::ReceiveForward, chunk + 1, m)
                                        : place_of(LoweredKind::ReceiveBackward, chunk - 1, m);
          need(place, forward ? place_of(LoweredKind::Forward, chunk, m) : input_gradient(chunk, m));
          channels[{place.rank, receive.rank, model_.lanes == 4 && !forward}].emplace_back(place, receive);
          return;
        }
        default:
          return;
      }
    });
    for (const auto& [channel, messages] : channels)
      for (size_t i = 0; i < messages.size(); ++i) {
        const auto& [send, receive] = messages[i];
        if (model_.capacity == 0) {
          items[item_at(send)].meets = item_at(receive);
          items[item_at(receive)].meets = item_at(send);
          continue;
        }
        need(receive, send);
        if (i > 0) need(receive, messages[i - 1].second);  // messages arrive in the order in which they were sent
        if (i >= static_cast<size_t>(model_.capacity))
          need(send, messages[i - static_cast<size_t>(model_.capacity)].second);
      }

    const auto deadlock = find_deadlock(items, queues, [this](int rank, int position) {
      return to_string(schedule_.by_rank[static_cast<size_t>(rank)][static_cast<size_t>(position)]);
    });
    if (deadlock) problem("deadlock", {deadlock->rank, deadlock->position}, "{}", deadlock->cycle);
  }

  const LoweredSchedule& schedule_;
  LoweredChannels model_;
  std::unordered_map<uint64_t, Place> places_;
  Problems problems_;
};

}  // namespace

std::vector<ScheduleProblem> problems_of(const LoweredSchedule& schedule, LoweredChannels model) {
  check_invariant(model.lanes == 1 || model.lanes == 2 || model.lanes == 4, "lanes are 1, 2 or 4, not {}", model.lanes);
  check_invariant(model.capacity >= 0, "a channel holds no {} messages", model.capacity);
  return Lowered(schedule, model).check();
}

}  // namespace shardpipe
