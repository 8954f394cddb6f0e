#include "schedules/progress.h"

#include <algorithm>

#include "base/error.h"

namespace shardpipe {
namespace {

class Queues {
 public:
  Queues(const std::vector<QueueItem>& items, const std::vector<std::vector<uint32_t>>& queues)
      : items_(items), queues_(queues), done_(queues.size(), 0), ended_(items.size(), false) {}

  void run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t queue = 0; queue < queues_.size(); ++queue)
        while (done_[queue] < queues_[queue].size() && can_run(queues_[queue][done_[queue]])) {
          const uint32_t item = queues_[queue][done_[queue]];
          end(item);
          if (items_[item].meets != no_item) end(items_[item].meets);
          progress = true;
        }
    }
  }

  // The first of a queue that has not run empty.
  uint32_t stuck() const {
    for (size_t queue = 0; queue < queues_.size(); ++queue)
      if (done_[queue] < queues_[queue].size()) return queues_[queue][done_[queue]];
    return no_item;
  }

  struct Wait {
    uint32_t waiter;
    QueueItem::Need need;
    uint32_t next;  // the first of the queue in which the needed item stands
  };
  // Why an item that is the first of its queue does not run.
  Wait wait_of(uint32_t waiter) const {
    const QueueItem& item = items_[waiter];
    for (const QueueItem::Need& need : item.needs)
      if (!ended_[need.item]) return {waiter, need, first_of(items_[need.item].queue)};
    check_invariant(item.meets != no_item, "item {} of rank {} could run", item.position, item.rank);
    return {waiter, {item.meets, item.position, items_[item.meets].position}, first_of(items_[item.meets].queue)};
  }

 private:
  uint32_t first_of(uint32_t queue) const { return queues_[queue][done_[queue]]; }
  bool is_first(uint32_t item) const {
    const uint32_t queue = items_[item].queue;
    return done_[queue] < queues_[queue].size() && first_of(queue) == item;
  }
  bool has_its_needs(uint32_t item) const {
    return std::ranges::all_of(items_[item].needs, [&](const QueueItem::Need& need) { return ended_[need.item]; });
  }
  bool can_run(uint32_t item) const {
    const uint32_t partner = items_[item].meets;
    return has_its_needs(item) && (partner == no_item || (is_first(partner) && has_its_needs(partner)));
  }
  void end(uint32_t item) {
    ended_[item] = true;
    ++done_[items_[item].queue];
  }

  const std::vector<QueueItem>& items_;
  const std::vector<std::vector<uint32_t>>& queues_;
  std::vector<size_t> done_;  // of each queue, how many items
  std::vector<bool> ended_;
};

}  // namespace

std::optional<Deadlock> find_deadlock(const std::vector<QueueItem>& items,
                                      const std::vector<std::vector<uint32_t>>& queues,
                                      const std::function<std::string(int rank, int position)>& name) {
  Queues state(items, queues);
  state.run();
  const uint32_t stuck = state.stuck();
  if (stuck == no_item) return std::nullopt;

  // Each waiter leads to another; there are finitely many, so one comes again.
  std::vector<Queues::Wait> waits;
  std::vector<uint32_t> seen_at(items.size(), no_item);
  uint32_t next = stuck;
  while (seen_at[next] == no_item) {
    seen_at[next] = static_cast<uint32_t>(waits.size());
    waits.push_back(state.wait_of(next));
    next = waits.back().next;
  }
  waits.erase(waits.begin(), waits.begin() + seen_at[next]);

  const auto& [first, first_need, after_first] = waits.front();
  Deadlock deadlock{.rank = items[first].rank, .position = first_need.own, .cycle = {}};
  deadlock.cycle = fmt::format("rank {}", items[first].rank);
  for (const auto& [waiter, need, after] : waits) {
    const QueueItem &item = items[waiter], &needed = items[need.item];
    const std::string owner = needed.rank == item.rank ? "its own" : fmt::format("rank {}'s", needed.rank);
    deadlock.cycle += fmt::format("{} waits at {} for {} {}", &need == &first_need ? "" : ", which",
                                  name(item.rank, need.own), owner, name(needed.rank, need.other));
    if (need.item == waiter)
      deadlock.cycle += ", which runs together with it";
    else if (waits.size() == 1)
      deadlock.cycle += ", which stands behind it";
  }
  return deadlock;
}

}  // namespace shardpipe
