// The strictest transport: each rank does its whole list in order on one lane, and an action of a group completes only
// when all members have come to it. What ends here ends on any transport: more lanes only remove waits, and waits point
// backwards.
#include <fmt/format.h>

#include <algorithm>

#include "program/check_rules.h"

namespace shardpipe {

void check_progress(const Program& program, std::vector<Finding>& findings) {
  const size_t ranks = program.by_pipeline_rank.size();
  std::vector<size_t> next(ranks, 0);
  const auto current = [&](size_t r) -> const Action* {
    const auto& actions = program.by_pipeline_rank[r].actions;
    return next[r] < actions.size() ? &actions[next[r]] : nullptr;
  };
  // A rank that moved may free the members of its groups: those are looked at again.
  std::vector<size_t> to_look_at(ranks);
  for (size_t r = 0; r < ranks; ++r) to_look_at[r] = r;
  while (!to_look_at.empty()) {
    const size_t r = to_look_at.back();
    to_look_at.pop_back();
    while (const Action* action = current(r)) {
      if (action->group == none) {
        ++next[r];
        continue;
      }
      const auto& members = program.groups[action->group].pipeline_ranks;
      const bool all_here = std::ranges::all_of(members, [&](uint16_t m) {
        const Action* theirs = current(m);
        return theirs != nullptr && theirs->group == action->group;
      });
      if (!all_here) break;
      for (const uint16_t m : members) {
        ++next[m];
        if (m != r) to_look_at.push_back(m);
      }
    }
  }
  for (size_t r = 0; r < ranks; ++r)
    if (current(r) != nullptr)
      findings.push_back({"nothing waits for ever", fmt::format("{} waits for group {}", place(program, r, next[r]),
                                                                program.groups[current(r)->group].name)});
}

}  // namespace shardpipe
