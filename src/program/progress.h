// In which order the actions of all ranks can happen under a channel model, or which of them wait for each other for
// ever. Linear in actions, waits and members of groups. What check() asks, and what simulate() walks along.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "program/channels.h"
#include "program/program.h"

namespace shardpipe {

struct ActionPlace {
  uint16_t rank;
  uint32_t action;
  bool operator==(const ActionPlace&) const = default;
};

struct Progress {
  std::vector<ActionPlace> order;    // each after all that it waits for
  std::vector<uint32_t> event_ends;  // where an event ends in `order`: one action, or all that meet in one
  std::string waits_for_ever;  // empty where all actions happen; else the cycle: "rank 0, action 5: … waits for …"
  uint64_t steps = 0;          // orders looked at: what the work grows with

  // Of event e: the actions that happen together.
  std::span<const ActionPlace> event(size_t e) const {
    const uint32_t begin = e == 0 ? 0 : event_ends[e - 1];
    return std::span(order).subspan(begin, event_ends[e] - begin);
  }
};

// Requires indices in range and waits that point backwards, as check_structure() has them; all else may be wrong.
Progress progress(const Program&, const ChannelModel&);

}  // namespace shardpipe
