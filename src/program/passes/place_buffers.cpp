// Addresses: resident buffers first, then the others in issue order, each at the lowest free place that holds it. A
// place is free again after its buffer's last use. Reusing it orders the two owners; `order` adds that wait.
#include <map>

#include "base/error.h"
#include "program/compile.h"
#include "program/lifetime.h"

namespace shardpipe {
namespace {

constexpr uint64_t alignment = 64;  // a cache line: neighbours on different lanes do not share one
uint64_t aligned(uint64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// The free places below the top, by offset; neighbours are merged.
class FreeList {
 public:
  explicit FreeList(uint64_t first) : top_(first) {}
  uint64_t take(uint64_t bytes) {
    for (auto place = places_.begin(); place != places_.end(); ++place) {
      if (place->second < bytes) continue;
      const auto [offset, size] = *place;
      places_.erase(place);
      if (size > bytes) places_.emplace(offset + bytes, size - bytes);
      return offset;
    }
    // Nothing fits: grow at the top, beginning in a free place that ends there.
    uint64_t offset = top_;
    if (!places_.empty()) {
      const auto last = std::prev(places_.end());
      if (last->first + last->second == top_) {
        offset = last->first;
        places_.erase(last);
      }
    }
    top_ = offset + bytes;
    return offset;
  }
  void give_back(uint64_t offset, uint64_t bytes) {
    auto place = places_.emplace(offset, bytes).first;
    if (const auto next = std::next(place); next != places_.end() && offset + bytes == next->first) {
      place->second += next->second;
      places_.erase(next);
    }
    if (place != places_.begin())
      if (const auto before = std::prev(place); before->first + before->second == place->first) {
        before->second += place->second;
        places_.erase(place);
      }
  }

 private:
  std::map<uint64_t, uint64_t> places_;
  uint64_t top_;
};

// The end of the resident buffers, which lie together at the bottom.
uint64_t place_residents(RankProgram& rank, const std::vector<Lifetime>& lifetimes, const RankProgram* like) {
  uint64_t end = 0;
  if (like == nullptr) {
    // Not those that nobody uses any more: where parameters are gathered, the whole ones of pass_blocks.
    for (uint32_t b = 0; b < rank.buffers.size(); ++b) {
      if (!rank.buffers[b].resident || !lifetimes[b].used()) continue;
      rank.buffers[b].offset = end;
      end += aligned(rank.buffers[b].bytes);
    }
    return end;
  }
  for (const Buffer& placed : like->buffers) {
    if (!placed.resident) continue;
    end = std::max(end, placed.offset + aligned(placed.bytes));
    for (Buffer& buffer : rank.buffers) {
      Buffer there = buffer;
      there.offset = placed.offset;
      if (there == placed) buffer = placed;
    }
  }
  return end;
}

}  // namespace

Program pass_place_buffers(Program program, const StepShape& shape) {
  for (size_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    RankProgram& rank = program.by_pipeline_rank[r];
    const std::vector<Lifetime> lifetimes = buffer_lifetimes(rank);
    FreeList free(place_residents(rank, lifetimes,
                                  shape.resident == nullptr ? nullptr : &shape.resident->by_pipeline_rank[r]));
    std::vector<std::vector<uint32_t>> begins(rank.actions.size()), ends(rank.actions.size());
    for (uint32_t b = 0; b < rank.buffers.size(); ++b) {
      if (rank.buffers[b].resident || !lifetimes[b].used()) continue;
      begins[lifetimes[b].first].push_back(b);
      ends[lifetimes[b].last].push_back(b);
    }
    for (size_t i = 0; i < rank.actions.size(); ++i) {
      for (const uint32_t b : begins[i]) rank.buffers[b].offset = free.take(aligned(rank.buffers[b].bytes));
      for (const uint32_t b : ends[i]) free.give_back(rank.buffers[b].offset, aligned(rank.buffers[b].bytes));
    }
    rank.arena_bytes = 0;
    for (uint32_t b = 0; b < rank.buffers.size(); ++b)
      if (lifetimes[b].used())
        rank.arena_bytes = std::max(rank.arena_bytes, rank.buffers[b].offset + rank.buffers[b].bytes);
  }
  return program;
}

}  // namespace shardpipe
