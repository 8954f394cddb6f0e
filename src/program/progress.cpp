// Kahn's algorithm: an action is ready when its predecessor in its queue and all that it waits for have happened. The
// k-th actions of a group's members meet, and happen when all of them are ready.
#include "program/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "program/text.h"

namespace shardpipe {
namespace {

constexpr uint32_t nobody = UINT32_MAX;  // no action

class Run {
 public:
  Run(const Program& program, const ChannelModel& channels) : program_(program), channels_(channels) {
    number_actions();
    line_up_queues();
    line_up_groups();
    line_up_followers();
  }

  Progress result() {
    for (uint32_t a = 0; a < actions(); ++a)
      if (pending_[a] == 0) ready_.push_back(a);
    while (!ready_.empty()) {
      const uint32_t a = ready_.back();
      ready_.pop_back();
      come(a);
    }
    if (progress_.order.size() < actions()) progress_.waits_for_ever = who_waits_for_whom();
    return std::move(progress_);
  }

 private:
  // Who speaks in a group, and when: turns[member][k] is its k-th action there.
  struct Members {
    std::vector<uint16_t> ranks;  // each once
    std::vector<std::vector<uint32_t>> turns;
    std::vector<uint32_t> arrived;  // of a meeting: members that have come to it
    size_t number_of(uint16_t rank) const {
      return static_cast<size_t>(std::ranges::find(ranks, rank) - ranks.begin());
    }
  };

  size_t actions() const { return place_.size(); }
  const Action& action(uint32_t a) const { return program_.by_pipeline_rank[place_[a].rank].actions[place_[a].action]; }
  bool meets_others(uint32_t a) const { return action(a).group != none && members_[action(a).group].ranks.size() > 1; }
  bool buffered(uint32_t a) const {
    return is_buffered(channels_, action(a)) && members_[action(a).group].ranks.size() == 2;
  }
  // The action of member `m` in turn k of a's group.
  uint32_t turn_of(const Members& members, size_t m, uint64_t k) const {
    return k < members.turns[m].size() ? members.turns[m][k] : nobody;
  }
  // What a buffered message waits for besides lanes and waits: a receive for its send, a send for room.
  uint32_t awaited_message(uint32_t a) const {
    const Members& members = members_[action(a).group];
    const size_t other = 1 - members.number_of(place_[a].rank);
    if (action(a).kind == Kind::Receive) return turn_of(members, other, turn_[a]);
    return turn_[a] < channels_.send_capacity ? nobody : turn_of(members, other, turn_[a] - channels_.send_capacity);
  }

  void number_actions() {
    for (const RankProgram& rank : program_.by_pipeline_rank) {
      first_.push_back(static_cast<uint32_t>(place_.size()));
      for (uint32_t i = 0; i < rank.actions.size(); ++i)
        place_.push_back({static_cast<uint16_t>(first_.size() - 1), i});
    }
    pending_.assign(actions(), 0);
    done_.assign(actions(), false);
    progress_.order.reserve(actions());
    progress_.event_ends.reserve(actions());
  }

  void line_up_queues() {
    previous_.assign(actions(), nobody);
    next_.assign(actions(), nobody);
    for (size_t r = 0; r < first_.size(); ++r) {
      std::array<uint32_t, lane_count> last;
      last.fill(nobody);
      const std::vector<Action>& list = program_.by_pipeline_rank[r].actions;
      for (uint32_t i = 0; i < list.size(); ++i) {
        const int queue = queue_of(channels_.lanes, list[i].lane);
        if (queue == no_queue) continue;
        uint32_t& before = last[static_cast<size_t>(queue)];
        const uint32_t a = first_[r] + i;
        if (before != nobody) {
          previous_[a] = before;
          next_[before] = a;
          ++pending_[a];
        }
        before = a;
      }
    }
  }

  void line_up_groups() {
    members_.resize(program_.groups.size());
    for (size_t g = 0; g < members_.size(); ++g) {
      members_[g].ranks = program_.groups[g].pipeline_ranks;
      std::ranges::sort(members_[g].ranks);
      members_[g].ranks.erase(std::unique(members_[g].ranks.begin(), members_[g].ranks.end()), members_[g].ranks.end());
      members_[g].turns.resize(members_[g].ranks.size());
    }
    turn_.assign(actions(), 0);
    for (uint32_t a = 0; a < actions(); ++a) {
      if (action(a).group == none) continue;
      Members& members = members_[action(a).group];
      std::vector<uint32_t>& turns = members.turns[members.number_of(place_[a].rank)];
      turn_[a] = static_cast<uint32_t>(turns.size());
      turns.push_back(a);
      if (members.arrived.size() < turns.size()) members.arrived.push_back(0);
    }
    if (channels_.send_capacity == 0) return;
    for (uint32_t a = 0; a < actions(); ++a)
      if (buffered(a) && (action(a).kind == Kind::Receive || turn_[a] >= channels_.send_capacity)) ++pending_[a];
  }

  // For each action, who has a wait for it.
  void line_up_followers() {
    first_follower_.assign(actions() + 1, 0);
    const auto each_wait = [&](auto visit) {
      for (uint32_t a = 0; a < actions(); ++a) {
        const std::vector<uint32_t>& waits = program_.by_pipeline_rank[place_[a].rank].waits;
        for (uint32_t w = 0; w < action(a).wait_count; ++w)
          visit(a, first_[place_[a].rank] + waits[action(a).first_wait + w]);
      }
    };
    each_wait([&](uint32_t a, uint32_t awaited) {
      ++pending_[a];
      ++first_follower_[awaited + 1];
    });
    for (size_t a = 0; a < actions(); ++a) first_follower_[a + 1] += first_follower_[a];
    followers_.resize(first_follower_.back());
    std::vector<uint32_t> next = first_follower_;
    each_wait([&](uint32_t a, uint32_t awaited) { followers_[next[awaited]++] = a; });
  }

  // Nothing but the others of its meeting holds `a` up any more.
  void come(uint32_t a) {
    if (!meets_others(a) || buffered(a)) {
      happen(a);
    } else {
      Members& members = members_[action(a).group];
      ++progress_.steps;
      if (++members.arrived[turn_[a]] < members.ranks.size()) return;
      for (size_t m = 0; m < members.ranks.size(); ++m) happen(members.turns[m][turn_[a]]);
    }
    progress_.event_ends.push_back(static_cast<uint32_t>(progress_.order.size()));
  }

  void happen(uint32_t a) {
    done_[a] = true;
    progress_.order.push_back(place_[a]);
    if (next_[a] != nobody) release(next_[a]);
    for (uint32_t f = first_follower_[a]; f < first_follower_[a + 1]; ++f) release(followers_[f]);
    if (channels_.send_capacity == 0 || !buffered(a)) return;
    const Members& members = members_[action(a).group];
    const bool send = action(a).kind == Kind::Send;
    const uint32_t other = turn_of(members, 1 - members.number_of(place_[a].rank),
                                   send ? turn_[a] : uint64_t{turn_[a]} + channels_.send_capacity);
    if (other != nobody && buffered(other) && action(other).kind == (send ? Kind::Receive : Kind::Send)) release(other);
  }

  void release(uint32_t a) {
    ++progress_.steps;
    if (--pending_[a] == 0) ready_.push_back(a);
  }

  // Of an action that cannot happen, one that keeps it: the first of its queue, one that it has a wait for, or a member
  // of its group. nobody: that member never comes.
  uint32_t awaited(uint32_t a) const {
    uint32_t head = a;
    while (previous_[head] != nobody && !done_[previous_[head]]) head = previous_[head];
    if (head != a) return head;
    const RankProgram& rank = program_.by_pipeline_rank[place_[a].rank];
    for (uint32_t w = 0; w < action(a).wait_count; ++w) {
      const uint32_t other = first_[place_[a].rank] + rank.waits[action(a).first_wait + w];
      if (!done_[other]) return other;
    }
    if (buffered(a)) return awaited_message(a);
    const Members& members = members_[action(a).group];
    for (size_t m = 0; m < members.ranks.size(); ++m) {
      const uint32_t other = turn_of(members, m, turn_[a]);
      if (other == nobody || pending_[other] > 0) return other;
    }
    return nobody;
  }

  std::string who_waits_for_whom() const {
    std::vector<uint32_t> chain;
    std::vector<uint32_t> seen_at(actions(), nobody);
    uint32_t a = 0;
    while (done_[a]) ++a;
    while (a != nobody && seen_at[a] == nobody) {
      seen_at[a] = static_cast<uint32_t>(chain.size());
      chain.push_back(a);
      a = awaited(a);
    }
    const auto told = [&](uint32_t b) {
      return fmt::format("rank {}, action {}: {} {}", place_[b].rank, place_[b].action, to_string(action(b).lane),
                         name_of(action(b)));
    };
    std::string text;
    if (a != nobody) {  // a cycle: told from its first action on
      chain.erase(chain.begin(), chain.begin() + seen_at[a]);
      std::rotate(chain.begin(), std::ranges::min_element(chain), chain.end());
    }
    for (const uint32_t b : chain) text += told(b) + " waits for ";
    if (a != nobody) return text + fmt::format("rank {}, action {}", place_[chain[0]].rank, place_[chain[0]].action);
    const Action& last = action(chain.back());
    return text +
           fmt::format("turn {} of {}, to which not all come", turn_[chain.back()], program_.groups[last.group].name);
  }

  const Program& program_;
  const ChannelModel channels_;
  std::vector<uint32_t> first_;            // of each rank; the actions of all ranks are numbered through
  std::vector<ActionPlace> place_;         // by action, like all that follow
  std::vector<uint32_t> pending_;          // orders that still hold it up
  std::vector<uint32_t> previous_, next_;  // in its queue
  std::vector<uint32_t> turn_;             // in its group
  std::vector<uint32_t> first_follower_, followers_;
  std::vector<bool> done_;
  std::vector<Members> members_;  // by group
  std::vector<uint32_t> ready_;
  Progress progress_;
};

}  // namespace

Progress progress(const Program& program, const ChannelModel& channels) { return Run(program, channels).result(); }

}  // namespace shardpipe
