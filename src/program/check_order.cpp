// For one rank: what every address holds, and who is known to have finished before whom. Found from lanes and waits
// alone (a vector clock a lane), so that it does not repeat the reasoning of the pass that made the waits.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "program/check_rules.h"
#include "program/text.h"

namespace shardpipe {
namespace {

using Clock = std::array<int64_t, lane_count>;  // of each lane, the last action that has surely finished; -1: none

// A stretch of the arena, or of the store, and the value in it.
struct Segment {
  uint64_t end;
  int64_t buffer;  // whose value it is; -1: nobody's
  int64_t writer;  // -1: it was there before the step
  Clock readers;   // since
};

class Arena {
 public:
  Arena(const RankProgram& rank, bool stored) {
    constexpr Clock never{-1, -1, -1, -1, -1, -1, -1, -1, -1};
    segments_[0] = {stored ? rank.store_bytes : rank.arena_bytes, -1, -1, never};
    for (size_t b = 0; b < rank.buffers.size(); ++b) {
      const Buffer& buffer = rank.buffers[b];
      if (buffer.stored != stored || !buffer.resident || buffer.bytes == 0) continue;
      cut(buffer.offset, buffer.offset + buffer.bytes);
      for (auto s = segments_.lower_bound(buffer.offset);
           s != segments_.end() && s->first < buffer.offset + buffer.bytes; ++s)
        s->second.buffer = static_cast<int64_t>(b);
    }
  }
  // Makes segments begin and end at these addresses.
  void cut(uint64_t begin, uint64_t end) {
    for (const uint64_t at : {begin, end}) {
      const auto after = segments_.upper_bound(at);
      if (after == segments_.begin()) continue;
      const auto segment = std::prev(after);
      if (segment->first == at || segment->second.end <= at) continue;
      Segment rest = segment->second;
      segment->second.end = at;
      segments_[at] = rest;
    }
  }
  template <typename Visit>
  void visit(uint64_t begin, uint64_t end, Visit visit) {
    for (auto s = segments_.lower_bound(begin); s != segments_.end() && s->first < end; ++s) visit(s->second);
  }
  void replace(uint64_t begin, uint64_t end, const Segment& value) {
    segments_.erase(segments_.lower_bound(begin), segments_.lower_bound(end));
    segments_[begin] = value;
  }

 private:
  std::map<uint64_t, Segment> segments_;
};

// A buffer that begins before another of this action has ended; nullptr: none.
const Buffer* overlapping(const RankProgram& rank, const Action& action) {
  std::vector<const Buffer*> buffers;
  for (const Use& use : uses_of(rank, action))
    if (rank.buffers[use.buffer].bytes > 0) buffers.push_back(&rank.buffers[use.buffer]);
  std::ranges::sort(buffers, {}, [](const Buffer* buffer) { return std::pair(buffer->stored, buffer->offset); });
  for (size_t k = 1; k < buffers.size(); ++k)
    if (buffers[k]->stored == buffers[k - 1]->stored &&
        buffers[k]->offset < buffers[k - 1]->offset + buffers[k - 1]->bytes)
      return buffers[k];
  return nullptr;
}

}  // namespace

void check_order(const Program& program, uint16_t r, std::vector<Finding>& findings) {
  const RankProgram& rank = program.by_pipeline_rank[r];
  constexpr Clock never{-1, -1, -1, -1, -1, -1, -1, -1, -1};
  std::array<Clock, lane_count> lane_clock;
  lane_clock.fill(never);
  std::vector<Clock> before(rank.actions.size());  // what has finished when an action begins
  std::vector<bool> written(rank.buffers.size(), false), read(rank.buffers.size(), false);
  for (size_t b = 0; b < rank.buffers.size(); ++b) written[b] = rank.buffers[b].resident;
  std::array places{Arena(rank, false), Arena(rank, true)};

  for (size_t i = 0; i < rank.actions.size(); ++i) {
    const Action& action = rank.actions[i];
    const auto lane = static_cast<size_t>(action.lane);
    Clock& clock = before[i] = lane_clock[lane];
    for (uint32_t w = 0; w < action.wait_count; ++w) {
      const uint32_t waited = rank.waits[action.first_wait + w];
      for (size_t l = 0; l < lane_count; ++l) clock[l] = std::max(clock[l], before[waited][l]);
      auto& its_lane = clock[static_cast<size_t>(rank.actions[waited].lane)];
      its_lane = std::max<int64_t>(its_lane, waited);
    }
    lane_clock[lane] = clock;
    lane_clock[lane][lane] = static_cast<int64_t>(i);

    const auto finding = [&](std::string_view rule, const Buffer& buffer) {
      findings.push_back({std::string(rule), fmt::format("{}: {}", place(program, r, i), name_of(buffer))});
    };
    if (const Buffer* shared = overlapping(rank, action)) finding("the buffers of one action do not overlap", *shared);
    for (const Use& use : uses_of(rank, action)) {
      const Buffer& buffer = rank.buffers[use.buffer];
      const uint64_t begin = buffer.offset, end = buffer.offset + buffer.bytes;
      if (use.access != Access::Write && !written[use.buffer]) {
        finding("nothing is read before it is written", buffer);
        continue;
      }
      if (buffer.bytes == 0) continue;
      Arena& arena = places[buffer.stored];
      arena.cut(begin, end);
      bool stale = false, unordered = false;
      arena.visit(begin, end, [&](Segment& segment) {
        if (use.access != Access::Write && segment.buffer != use.buffer) stale = true;
        if (use.access == Access::Write && segment.buffer >= 0 && segment.buffer != use.buffer &&
            rank.buffers[segment.buffer].resident)
          stale = true;
        if (segment.writer >= 0) {
          const auto its_lane = static_cast<size_t>(rank.actions[segment.writer].lane);
          if (segment.writer != static_cast<int64_t>(i) && its_lane != lane && clock[its_lane] < segment.writer)
            unordered = true;
        }
        for (size_t l = 0; l < lane_count; ++l)
          if (use.access != Access::Read && l != lane && clock[l] < segment.readers[l]) unordered = true;
        if (use.access == Access::Read) segment.readers[lane] = static_cast<int64_t>(i);
      });
      if (stale) finding("a value is not used after its memory was given to another", buffer);
      if (unordered) finding("a use that conflicts with an earlier one is ordered after it", buffer);
      if (use.access == Access::Read)
        read[use.buffer] = true;
      else
        arena.replace(begin, end, {end, use.buffer, static_cast<int64_t>(i), never});
      if (use.access == Access::Add) read[use.buffer] = true;
      written[use.buffer] = true;
    }
  }
  for (size_t b = 0; b < rank.buffers.size(); ++b)
    if (written[b] && !read[b] && !rank.buffers[b].resident && rank.buffers[b].role != Role::Workspace &&
        rank.buffers[b].role != Role::Saved && rank.buffers[b].role != Role::WireGradient)
      findings.push_back({"what is computed is used", fmt::format("rank {}: {}", r, name_of(rank.buffers[b]))});
}

}  // namespace shardpipe
