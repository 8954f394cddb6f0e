// Small wrongs done to schedules at random, and a judge that runs what comes out: literally, with no rule of check.h.
#pragma once
#include <fmt/format.h>

#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "schedules/check.h"
#include "schedules/lowered.h"

namespace shardpipe {

class Chance {
 public:
  explicit Chance(uint32_t seed) : random_(seed) {}
  size_t below(size_t end) { return random_() % end; }

 private:
  std::mt19937 random_;
};

inline void change_pass(Cell& cell, Chance& chance) { cell.pass = static_cast<Pass>(chance.below(4)); }
inline void change_pass(LoweredAction& action, Chance& chance) {
  action.kind = static_cast<LoweredKind>(chance.below(11));
}

// Does one wrong to a Schedule or LoweredSchedule whose first rank has an action; says which.
template <typename AnySchedule>
std::string mutate(AnySchedule& schedule, Chance& chance) {
  size_t from = chance.below(schedule.by_rank.size());
  if (schedule.by_rank[from].empty()) from = 0;
  auto& actions = schedule.by_rank[from];
  if (actions.empty()) return "does nothing";
  const size_t i = chance.below(actions.size()), j = chance.below(actions.size());
  const std::string who = fmt::format("rank {}, {} in cell {}", from, to_string(actions[i]), i + 1);
  switch (chance.below(10)) {
    case 0:
      std::swap(actions[i], actions[j]);
      return fmt::format("{} swapped with cell {}", who, j + 1);
    case 1:  // neighbours: what stays valid most often
    case 2:
      if (i + 1 < actions.size()) std::swap(actions[i], actions[i + 1]);
      return fmt::format("{} swapped with the next", who);
    case 3: {
      const auto moved = actions[i];
      actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(i));
      actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(std::min(j, actions.size())), moved);
      return fmt::format("{} moved to cell {}", who, j + 1);
    }
    case 4:
      actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(i));
      return fmt::format("{} dropped", who);
    case 5:
      actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(j),
                     typename std::decay_t<decltype(actions)>::value_type(actions[i]));
      return fmt::format("{} once more in cell {}", who, j + 1);
    case 6: {
      const auto moved = actions[i];
      actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(i));
      auto& others = schedule.by_rank[chance.below(schedule.by_rank.size())];
      others.insert(others.begin() + static_cast<std::ptrdiff_t>(chance.below(others.size() + 1)), moved);
      return fmt::format("{} moved to another rank", who);
    }
    case 7:
      if (chance.below(2) == 0)
        actions[i].micro_batch = static_cast<uint16_t>(chance.below(schedule.micro_batches + 1u));
      else
        actions[i].chunk = static_cast<uint16_t>(chance.below(schedule.chunks + 1u));
      return fmt::format("{} made {}", who, to_string(actions[i]));
    case 8:
      change_pass(actions[i], chance);
      return fmt::format("{} made {}", who, to_string(actions[i]));
    default:
      actions[i].with_next = !actions[i].with_next;
      return fmt::format("{} runs together with the next, or no longer", who);
  }
}

// Runs each rank's list, one action after the other in each of the rank's queues, with what a rank has as sets and what
// is under way as lists. A pass takes what it reads from its own rank; messages bring the rest.
class Judge {
 public:
  // Empty: all ranks come to their ends, having computed what they should, each sum in ascending order.
  static std::string verdict(const LoweredSchedule& schedule, LoweredChannels channels) {
    return Judge(schedule, channels, false).run();
  }
  // Without messages: what a rank makes is seen by all.
  static std::string verdict(const Schedule& schedule) {
    const LoweredSchedule lowered = without_messages(schedule);
    return Judge(lowered, {.lanes = 1, .capacity = 0}, true).run();
  }

 private:
  using Item = std::tuple<char, int, int>;  // 'y': a chunk's output, 'g': the gradient of its input; chunk, micro-batch
  struct Rank {
    std::vector<std::vector<LoweredAction>> queues;
    std::vector<size_t> next;
    std::set<Item> has;                      // made here or received; 's': kept by a forward, 'i': by an input part
    std::map<int, std::vector<int>> sum;     // of a chunk, the micro-batches whose gradients were added, in order
    std::map<int, std::set<int>> unreduced;  // of those, what a reduction has to take yet
    std::set<int> gathered;
  };

  Judge(const LoweredSchedule& schedule, LoweredChannels channels, bool all_see)
      : schedule_(schedule), model_(channels), all_see_(all_see) {
    for (const auto& actions : schedule.by_rank) {
      Rank& rank = ranks_.emplace_back();
      rank.queues.resize(5);
      rank.next.assign(5, 0);
      for (const LoweredAction& action : actions) {
        shards_ |= action.kind == LoweredKind::Unshard || action.kind == LoweredKind::Reshard;
        reduces_ |= action.kind == LoweredKind::ReduceGrad;
        rank.queues[queue_of(action.kind)].push_back(action);
      }
    }
  }

  size_t queue_of(LoweredKind kind) const {
    const bool sends = kind == LoweredKind::SendForward || kind == LoweredKind::SendBackward;
    const bool receives = kind == LoweredKind::ReceiveForward || kind == LoweredKind::ReceiveBackward;
    if (model_.lanes == 1 || (!sends && !receives)) return 0;
    if (model_.lanes == 2) return sends ? 1 : 2;
    return kind == LoweredKind::SendForward ? 1 : kind == LoweredKind::ReceiveForward ? 2 : sends ? 3 : 4;
  }

  std::string run() {
    for (bool moved = true; moved && wrong_.empty();) {
      moved = false;
      for (int r = 0; r < static_cast<int>(ranks_.size()); ++r)
        for (size_t q = 0; q < 5 && wrong_.empty(); ++q) moved |= advance(r, q);
    }
    if (!wrong_.empty()) return wrong_;
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (size_t q = 0; q < 5; ++q)
        if (ranks_[r].next[q] < ranks_[r].queues[q].size())
          return fmt::format("rank {} hangs at {}", r, to_string(ranks_[r].queues[q][ranks_[r].next[q]]));
    for (const auto& [ends, messages] : under_way_)
      if (!messages.empty()) return "a message that nobody takes";
    std::vector<int> all;
    for (int m = 0; m < schedule_.micro_batches; ++m) all.push_back(m);
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
      Rank& rank = ranks_[schedule_.rank_of_chunk[static_cast<size_t>(chunk)]];
      if (rank.sum[chunk] != all) return fmt::format("chunk {} added {}", chunk, fmt::join(rank.sum[chunk], " "));
      if (reduces_ && !rank.unreduced[chunk].empty()) return fmt::format("gradients of chunk {} not reduced", chunk);
    }
    return "";
  }

  bool has(int rank, const Item& item) const {
    if (!all_see_) return ranks_[static_cast<size_t>(rank)].has.contains(item);
    for (const Rank& any : ranks_)
      if (any.has.contains(item)) return true;
    return false;
  }
  void give(int rank, const Item& item) {
    if (!ranks_[static_cast<size_t>(rank)].has.insert(item).second) wrong_ = "something made or received twice";
  }

  // The next of one queue, if it can run.
  bool advance(int r, size_t q) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    if (rank.next[q] == rank.queues[q].size()) return false;
    const LoweredAction& action = rank.queues[q][rank.next[q]];
    const int chunk = action.chunk, m = action.micro_batch;
    if (chunk >= schedule_.chunks || schedule_.rank_of_chunk[action.chunk] != r) {
      wrong_ = "a chunk that is not here";
      return false;
    }
    switch (action.kind) {
      case LoweredKind::Unshard:
        if (!rank.gathered.insert(chunk).second) wrong_ = "gathered twice";
        ++rank.next[q];
        return true;
      case LoweredKind::Reshard:
        if (rank.gathered.erase(chunk) == 0) wrong_ = "gives up what is not gathered";
        ++rank.next[q];
        return true;
      case LoweredKind::ReduceGrad:
        rank.unreduced[chunk].clear();
        ++rank.next[q];
        return true;
      case LoweredKind::SendForward:
        return send(r, q, {'y', chunk, m}, chunk + 1);
      case LoweredKind::SendBackward:
        return send(r, q, {'g', chunk, m}, chunk - 1);
      case LoweredKind::ReceiveForward:
        return receive(r, q, {'y', chunk - 1, m}, chunk - 1);
      case LoweredKind::ReceiveBackward:
        return receive(r, q, {'g', chunk + 1, m}, chunk + 1);
      default:
        return compute(r, q);
    }
  }

  // A pass, and those that run together with it.
  bool compute(int r, size_t q) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    size_t end = rank.next[q] + 1;
    while (rank.queues[q][end - 1].with_next && end < rank.queues[q].size() && is_pass(rank.queues[q][end].kind)) ++end;
    for (size_t i = rank.next[q]; i < end; ++i) {
      const LoweredAction& action = rank.queues[q][i];
      const int chunk = action.chunk, m = action.micro_batch;
      if (m >= schedule_.micro_batches) wrong_ = "a micro-batch that there is not";
      const bool weight_alone = action.kind == LoweredKind::BackwardWeight;
      if (action.kind == LoweredKind::Forward) {
        if (chunk > 0 && !has(r, {'y', chunk - 1, m})) return false;
      } else if (weight_alone) {
        if (!rank.has.contains({'i', chunk, m})) return false;
      } else {
        if (!rank.has.contains({'s', chunk, m})) return false;
        if (chunk + 1 < schedule_.chunks && !has(r, {'g', chunk + 1, m})) return false;
      }
    }
    for (size_t i = rank.next[q]; i < end && wrong_.empty(); ++i) {
      const LoweredAction& action = rank.queues[q][i];
      const int chunk = action.chunk, m = action.micro_batch;
      if (chunk >= schedule_.chunks || schedule_.rank_of_chunk[action.chunk] != r) {
        wrong_ = "a chunk that is not here";
        break;
      }
      if (shards_ && action.kind != LoweredKind::BackwardWeight && !rank.gathered.contains(chunk))
        wrong_ = "computes without parameters";
      if (action.kind == LoweredKind::Forward) {
        give(r, {'y', chunk, m});
        give(r, {'s', chunk, m});
      }
      if (action.kind == LoweredKind::Backward || action.kind == LoweredKind::BackwardInput) {
        give(r, {'g', chunk, m});
        rank.has.insert({'i', chunk, m});
      }
      if (action.kind == LoweredKind::Backward || action.kind == LoweredKind::BackwardWeight) {
        rank.sum[chunk].push_back(m);
        rank.unreduced[chunk].insert(m);
      }
    }
    rank.next[q] = end;
    return true;
  }

  // Messages between two ranks share a channel; with four lanes, those of one direction.
  std::deque<Item>& channel(int src, int dst, const Item& item) {
    return under_way_[{src, dst, model_.lanes == 4 && std::get<0>(item) == 'g'}];
  }
  int rank_of(int chunk) const {
    return chunk < 0 || chunk >= schedule_.chunks ? -1 : schedule_.rank_of_chunk[static_cast<size_t>(chunk)];
  }

  bool send(int r, size_t q, const Item& item, int to_chunk) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const int dst = rank_of(to_chunk);
    if (dst < 0 || dst == r) {
      wrong_ = "a message to nobody";
      return false;
    }
    if (!rank.has.contains(item)) return false;
    if (model_.capacity > 0) {
      std::deque<Item>& messages = channel(r, dst, item);
      if (messages.size() >= static_cast<size_t>(model_.capacity)) return false;
      messages.push_back(item);
      ++rank.next[q];
      return true;
    }
    Rank& other = ranks_[static_cast<size_t>(dst)];
    const size_t at = queue_of(std::get<0>(item) == 'y' ? LoweredKind::ReceiveForward : LoweredKind::ReceiveBackward);
    if (other.next[at] == other.queues[at].size()) return false;
    const LoweredAction& receive = other.queues[at][other.next[at]];
    const LoweredKind wanted = std::get<0>(item) == 'y' ? LoweredKind::ReceiveForward : LoweredKind::ReceiveBackward;
    if (receive.kind != wanted || receive.chunk != to_chunk || receive.micro_batch != std::get<2>(item)) return false;
    ++rank.next[q];
    ++other.next[at];
    give(dst, item);
    return true;
  }

  bool receive(int r, size_t q, const Item& item, int from_chunk) {
    const int src = rank_of(from_chunk);
    if (src < 0 || src == r) {
      wrong_ = "a message from nobody";
      return false;
    }
    if (model_.capacity == 0) return false;  // its sender moves both
    std::deque<Item>& messages = channel(src, r, item);
    if (messages.empty() || messages.front() != item) return false;
    messages.pop_front();
    ++ranks_[static_cast<size_t>(r)].next[q];
    give(r, item);
    return true;
  }

  const LoweredSchedule& schedule_;
  LoweredChannels model_;
  bool all_see_, shards_ = false, reduces_ = false;
  std::vector<Rank> ranks_;
  std::map<std::tuple<int, int, bool>, std::deque<Item>> under_way_;  // sent, not yet received
  std::string wrong_;
};

}  // namespace shardpipe
