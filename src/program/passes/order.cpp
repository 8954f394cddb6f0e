// The last pass. Waits, from what actions read and write: a reader waits for the writer, a writer for the readers and
// the writer before it, and the first user of a reused address for the last users of what lay there. Lanes run in
// order, so at most one wait for each other lane is kept. Places in each group's order are numbered here too, and uses
// and buffers are put in the order of their use.
#include <algorithm>
#include <array>
#include <map>

#include "program/compile.h"

namespace shardpipe {
namespace {

// Last action of each lane that a successor has to wait for; -1: none.
using Frontier = std::array<int64_t, lane_count>;
constexpr Frontier no_one{-1, -1, -1, -1, -1, -1, -1, -1, -1};

void join(Frontier& into, const Frontier& other) {
  for (int lane = 0; lane < lane_count; ++lane) into[lane] = std::max(into[lane], other[lane]);
}

struct BufferState {
  bool begun = false;
  Frontier writers = no_one, readers = no_one;  // readers since the last write
};

// Which buffer last held each address: segments by offset that do not overlap.
class Occupants {
 public:
  // Calls `previous` with each buffer that lay in [begin, end), and puts `buffer` there.
  template <typename Previous>
  void settle(uint64_t begin, uint64_t end, uint32_t buffer, Previous previous) {
    auto segment = segments_.upper_bound(begin);
    if (segment != segments_.begin()) --segment;
    std::vector<std::pair<uint64_t, Segment>> rests;
    while (segment != segments_.end() && segment->first < end) {
      const auto [offset, old] = *segment;
      if (old.end <= begin) {
        ++segment;
        continue;
      }
      previous(old.buffer);
      if (offset < begin) rests.push_back({offset, {begin, old.buffer}});
      if (old.end > end) rests.push_back({end, {old.end, old.buffer}});
      segment = segments_.erase(segment);
    }
    for (const auto& [offset, rest] : rests) segments_[offset] = rest;
    segments_[begin] = {end, buffer};
  }

 private:
  struct Segment {
    uint64_t end;
    uint32_t buffer;
  };
  std::map<uint64_t, Segment> segments_;
};

void derive_waits(RankProgram& rank) {
  rank.waits.clear();
  std::vector<BufferState> states(rank.buffers.size());
  std::array<Occupants, 2> occupants;  // of the arena, of the store
  for (uint32_t i = 0; i < rank.actions.size(); ++i) {
    Action& action = rank.actions[i];
    Frontier needed = no_one;
    for (const Use& use : uses_of(rank, action)) {
      BufferState& state = states[use.buffer];
      const Buffer& buffer = rank.buffers[use.buffer];
      if (!state.begun) {
        state.begun = true;
        if (buffer.bytes > 0)
          occupants[buffer.stored].settle(buffer.offset, buffer.offset + buffer.bytes, use.buffer,
                                          [&](uint32_t previous) {
                                            join(needed, states[previous].writers);
                                            join(needed, states[previous].readers);
                                          });
      }
      join(needed, state.writers);
      if (use.access != Access::Read) join(needed, state.readers);
    }
    const auto lane = static_cast<int>(action.lane);
    for (const Use& use : uses_of(rank, action)) {
      BufferState& state = states[use.buffer];
      if (use.access == Access::Read) {
        state.readers[lane] = i;
      } else {
        state.writers = state.readers = no_one;
        state.writers[lane] = i;
      }
    }
    action.first_wait = static_cast<uint32_t>(rank.waits.size());
    for (int other = 0; other < lane_count; ++other)
      if (other != lane && needed[other] >= 0) rank.waits.push_back(static_cast<uint32_t>(needed[other]));
    action.wait_count = static_cast<uint32_t>(rank.waits.size()) - action.first_wait;
  }
}

// Passes leave uses and buffers in the order in which they made them, and some buffers unused. Here an action's reads
// come before what it writes, as its line of text has them.
void compact(RankProgram& rank) {
  std::vector<Use> uses;
  std::vector<Buffer> buffers;
  std::vector<uint32_t> renamed(rank.buffers.size(), UINT32_MAX);
  for (Action& action : rank.actions) {
    const auto first = static_cast<uint32_t>(uses.size());
    std::vector<Use> reads_first(rank.begin_uses(action), rank.end_uses(action));
    std::stable_partition(reads_first.begin(), reads_first.end(),
                          [](const Use& use) { return use.access == Access::Read; });
    for (const Use& use : reads_first) {
      if (renamed[use.buffer] == UINT32_MAX) {
        renamed[use.buffer] = static_cast<uint32_t>(buffers.size());
        buffers.push_back(rank.buffers[use.buffer]);
      }
      uses.push_back({renamed[use.buffer], use.access});
    }
    action.first_use = first;
  }
  rank.uses = std::move(uses);
  rank.buffers = std::move(buffers);
}

}  // namespace

Program pass_order(Program program, const StepShape&) {
  for (RankProgram& rank : program.by_pipeline_rank) {
    compact(rank);
    derive_waits(rank);
    std::vector<uint32_t> next(program.groups.size(), 0);
    for (Action& action : rank.actions)
      if (action.group != none) action.sequence = next[action.group]++;
  }
  return program;
}

}  // namespace shardpipe
