// How a pass changes a rank's program: buffers are found or made by their meaning, actions are appended in issue order
// with the buffers that they use.
#pragma once
#include <unordered_map>
#include <vector>

#include "program/program.h"

namespace shardpipe {

uint16_t group_index(Program&, const Group&);  // found by name, else added

// Rewrites one rank: a pass reads the old actions and appends the new order. The buffers and uses stay where they are.
class RankEditor {
 public:
  explicit RankEditor(RankProgram&);

  // The buffer with this role, index, micro-batch, copy and place; made, with bytes and resident as given, if it is not
  // there.
  uint32_t buffer(const Buffer& meaning);
  // The same when it must be there already, in the arena.
  uint32_t existing(Role, uint16_t index, uint16_t micro_batch = none, uint16_t copy = 0) const;
  bool has(Role, uint16_t index, uint16_t micro_batch = none, uint16_t copy = 0) const;

  std::vector<Action> take_actions();  // leaves the rank without actions; uses stay valid
  void append(const Action&);          // with the uses that it has
  void append(Action, const std::vector<Use>&);

 private:
  RankProgram& rank_;
  std::unordered_map<uint64_t, uint32_t> by_meaning_;
};

}  // namespace shardpipe
