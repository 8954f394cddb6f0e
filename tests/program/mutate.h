// Small wrongs done to a program, and an independent judge of whether one does harm.
#pragma once
#include <algorithm>
#include <bitset>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "program/interpreter.h"
#include "program/text.h"

namespace shardpipe {

// A rank's actions in another order, or without some, or with some twice: `order` names old actions. Waits stay with
// the actions that they were for (the first copy); those that would now point forwards are dropped. Numbers in groups
// follow the new order, as those of a generator would that made this list.
inline void rearrange(Program& program, size_t r, const std::vector<uint32_t>& order) {
  RankProgram& rank = program.by_pipeline_rank[r];
  std::vector<uint32_t> moved_to(rank.actions.size(), UINT32_MAX);
  for (uint32_t i = 0; i < order.size(); ++i) moved_to[order[i]] = std::min(moved_to[order[i]], i);
  std::vector<Action> actions;
  std::vector<uint32_t> waits, next(program.groups.size(), 0);
  for (uint32_t i = 0; i < order.size(); ++i) {
    Action action = rank.actions[order[i]];
    const uint32_t first = action.first_wait, count = action.wait_count;
    action.first_wait = static_cast<uint32_t>(waits.size());
    for (uint32_t w = first; w < first + count; ++w)
      if (moved_to[rank.waits[w]] < i) waits.push_back(moved_to[rank.waits[w]]);
    action.wait_count = static_cast<uint32_t>(waits.size()) - action.first_wait;
    if (action.group != none) action.sequence = next[action.group]++;
    actions.push_back(action);
  }
  rank.actions = std::move(actions);
  rank.waits = std::move(waits);
}

inline std::vector<uint32_t> in_order(const RankProgram& rank) {
  std::vector<uint32_t> order(rank.actions.size());
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

inline std::vector<uint32_t> actions_of(const RankProgram& rank, Kind kind) {
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < rank.actions.size(); ++i)
    if (rank.actions[i].kind == kind) found.push_back(i);
  return found;
}

// Receives just before the first, sends just after the last arithmetic that touches their bytes.
inline void place_messages_where_used(Program& program) {
  for (size_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    const RankProgram& rank = program.by_pipeline_rank[r];
    const std::vector<uint32_t> receives = actions_of(rank, Kind::Receive), sends = actions_of(rank, Kind::Send);
    const auto buffer_of = [&](uint32_t message) { return rank.begin_uses(rank.actions[message])->buffer; };
    std::vector<uint32_t> order;
    std::vector<bool> placed(rank.actions.size(), false);
    const auto put = [&](uint32_t i) {
      if (!placed[i]) order.push_back(i);
      placed[i] = true;
    };
    for (uint32_t i = 0; i < rank.actions.size(); ++i) {
      const Action& action = rank.actions[i];
      if (action.kind == Kind::Send || action.kind == Kind::Receive) continue;
      for (const Use& use : uses_of(rank, action))
        for (const uint32_t receive : receives)
          if (buffer_of(receive) == use.buffer) put(receive);
      put(i);
      for (const Use& use : uses_of(rank, action))
        for (const uint32_t send : sends)
          if (buffer_of(send) == use.buffer && use.access != Access::Read) put(send);
    }
    rearrange(program, r, order);
  }
}

inline void remove_wait(RankProgram& rank, uint32_t wait) {
  rank.waits.erase(rank.waits.begin() + wait);
  for (Action& action : rank.actions) {
    if (wait < action.first_wait)
      --action.first_wait;
    else if (wait < action.first_wait + action.wait_count)
      --action.wait_count;
  }
}

// An action of rank `from` stands on rank `to` instead, at `place`, with the buffers that there have its buffers'
// numbers.
inline void give_to_another_rank(Program& program, size_t from, uint32_t i, size_t to, uint32_t place) {
  RankProgram &giver = program.by_pipeline_rank[from], &taker = program.by_pipeline_rank[to];
  Action action = giver.actions[i];
  const std::vector<Use> uses(giver.begin_uses(action), giver.end_uses(action));
  std::vector<uint32_t> order = in_order(giver);
  order.erase(order.begin() + i);
  rearrange(program, from, order);
  action.first_use = static_cast<uint32_t>(taker.uses.size());
  action.first_wait = action.wait_count = 0;
  for (const Use& use : uses)
    taker.uses.push_back({static_cast<uint32_t>(use.buffer % taker.buffers.size()), use.access});
  order = in_order(taker);
  order.insert(order.begin() + std::min<std::ptrdiff_t>(place, std::ssize(order)), static_cast<uint32_t>(order.size()));
  taker.actions.push_back(action);
  rearrange(program, to, order);
}

// One wrong, and its name: two swapped, one moved, repeated, dropped or given to another rank, a wait removed.
inline std::string mutate(Program& program, std::mt19937& random) {
  const auto below = [&](size_t end) { return static_cast<uint32_t>(random() % end); };
  const size_t r = below(program.by_pipeline_rank.size());
  RankProgram& rank = program.by_pipeline_rank[r];
  const uint32_t i = below(rank.actions.size()), j = below(rank.actions.size());
  const std::string who = fmt::format("rank {}, {}", r, describe(rank, rank.actions[i]));
  std::vector<uint32_t> order = in_order(rank);
  switch (below(7)) {
    case 0:
      std::swap(order[i], order[j]);
      rearrange(program, r, order);
      return fmt::format("{} swapped with action {}", who, j);
    case 1:
      if (i + 1 < order.size()) std::swap(order[i], order[i + 1]);
      rearrange(program, r, order);
      return who + " swapped with the next";
    case 2:
      order.erase(order.begin() + i);
      order.insert(order.begin() + std::min<std::ptrdiff_t>(j, std::ssize(order)), i);
      rearrange(program, r, order);
      return fmt::format("{} moved to {}", who, j);
    case 3:
      order.insert(order.begin() + j, i);
      rearrange(program, r, order);
      return fmt::format("{} once more at {}", who, j);
    case 4:
      order.erase(order.begin() + i);
      rearrange(program, r, order);
      return who + " dropped";
    case 5:
      give_to_another_rank(program, r, i, below(program.by_pipeline_rank.size()), j);
      return who + " given to another rank";
    default:
      if (!rank.waits.empty()) remove_wait(rank, below(rank.waits.size()));
      return fmt::format("rank {}, a wait removed", r);
  }
}

// For every pair of actions of a rank that use the same bytes, one of them writing: is the earlier surely done before
// the later begins? By brute force over all pairs: no clocks, no lanes' order but what "runs in order" says.
inline std::string first_unordered_pair(const RankProgram& rank) {
  constexpr size_t most = 1024;
  std::vector<std::bitset<most>> before(rank.actions.size());
  if (rank.actions.size() > most) return "too many actions for this judge";
  for (size_t i = 0; i < rank.actions.size(); ++i) {
    const auto after = [&](size_t j) { before[i] |= before[j], before[i].set(j); };
    for (size_t j = i; j-- > 0;)
      if (rank.actions[j].lane == rank.actions[i].lane) {
        after(j);
        break;
      }
    for (uint32_t w = 0; w < rank.actions[i].wait_count; ++w) after(rank.waits[rank.actions[i].first_wait + w]);
  }
  for (size_t j = 0; j < rank.actions.size(); ++j)
    for (size_t i = 0; i < j; ++i) {
      if (before[j][i]) continue;
      for (const Use& a : uses_of(rank, rank.actions[i]))
        for (const Use& b : uses_of(rank, rank.actions[j])) {
          const Buffer &first = rank.buffers[a.buffer], &second = rank.buffers[b.buffer];
          const bool conflict = a.access != Access::Read || b.access != Access::Read;
          if (conflict && first.stored == second.stored && first.offset < second.offset + second.bytes &&
              second.offset < first.offset + first.bytes)
            return fmt::format("{} and {} are not ordered", describe(rank, rank.actions[i]),
                               describe(rank, rank.actions[j]));
        }
    }
  return "";
}

// What harm a changed program does; empty: none. Where all conflicting pairs are ordered as they are issued, every run
// computes what the run in issue order does, so that one run decides.
inline std::string harm(const Program& program, const StepShape& shape, const Outcome& right, Symbols& symbols) {
  for (const RankProgram& rank : program.by_pipeline_rank)
    if (std::string pair = first_unordered_pair(rank); !pair.empty()) return pair;
  return difference(interpret(program, shape, symbols, 0, true), right, symbols);
}

}  // namespace shardpipe
