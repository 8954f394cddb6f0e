#include "program/edit.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace shardpipe {
namespace {

uint64_t key(bool stored, Role role, uint16_t index, uint16_t micro_batch, uint16_t copy) {
  return uint64_t{stored} << 63 | static_cast<uint64_t>(role) << 48 | static_cast<uint64_t>(index) << 32 |
         static_cast<uint64_t>(micro_batch) << 16 | copy;
}

}  // namespace

uint16_t group_index(Program& program, const Group& group) {
  const auto found = std::ranges::find(program.groups, group.name, &Group::name);
  if (found != program.groups.end()) return static_cast<uint16_t>(found - program.groups.begin());
  program.groups.push_back(group);
  return static_cast<uint16_t>(program.groups.size() - 1);
}

RankEditor::RankEditor(RankProgram& rank) : rank_(rank) {
  for (uint32_t i = 0; i < rank.buffers.size(); ++i) {
    const Buffer& b = rank.buffers[i];
    by_meaning_.emplace(key(b.stored, b.role, b.index, b.micro_batch, b.copy), i);
  }
}

uint32_t RankEditor::buffer(const Buffer& meaning) {
  const auto [found, made] =
      by_meaning_.try_emplace(key(meaning.stored, meaning.role, meaning.index, meaning.micro_batch, meaning.copy),
                              static_cast<uint32_t>(rank_.buffers.size()));
  if (made) rank_.buffers.push_back(meaning);
  return found->second;
}

uint32_t RankEditor::existing(Role role, uint16_t index, uint16_t micro_batch, uint16_t copy) const {
  const auto found = by_meaning_.find(key(false, role, index, micro_batch, copy));
  check_invariant(found != by_meaning_.end(),
                  "a pass looks for a buffer that no earlier pass made: role {}, index {}, "
                  "micro-batch {}, copy {}",
                  static_cast<int>(role), index, micro_batch, copy);
  return found->second;
}

bool RankEditor::has(Role role, uint16_t index, uint16_t micro_batch, uint16_t copy) const {
  return by_meaning_.contains(key(false, role, index, micro_batch, copy));
}

std::vector<Action> RankEditor::take_actions() { return std::exchange(rank_.actions, {}); }

void RankEditor::append(const Action& action) { rank_.actions.push_back(action); }

void RankEditor::append(Action action, const std::vector<Use>& uses) {
  action.first_use = static_cast<uint32_t>(rank_.uses.size());
  action.use_count = static_cast<uint32_t>(uses.size());
  rank_.uses.insert(rank_.uses.end(), uses.begin(), uses.end());
  rank_.actions.push_back(action);
}

}  // namespace shardpipe
