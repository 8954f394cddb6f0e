// Addresses, in the arena and in the store alike: resident buffers first, then the others in issue order, each in the
// smallest free place that holds it. A place is free again after its buffer's last use. Reusing it orders the two
// owners; `order` adds that wait.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "program/compile.h"
#include "program/lifetime.h"

namespace shardpipe {
namespace {

constexpr uint64_t cache_line = 64;    // neighbours on different lanes do not share one
constexpr uint64_t disk_block = 4096;  // what direct I/O reads and writes, and where memory for it begins

// The buffers of one rank that lie in one place, arena or store, and where they lie.
struct Places {
  RankProgram& rank;
  const std::vector<Lifetime>& lifetimes;
  bool stored;
  uint64_t alignment;

  uint64_t aligned(uint64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }
  bool has(uint32_t b) const { return rank.buffers[b].stored == stored && lifetimes[b].used(); }
};

// The free places below the top, by offset (neighbours are merged) and by size.
class FreeList {
 public:
  explicit FreeList(uint64_t first) : top_(first) {}
  uint64_t take(uint64_t bytes) {
    // The smallest that is large enough; of those, the first.
    if (const auto best = by_size_.lower_bound({bytes, 0}); best != by_size_.end()) {
      const auto [size, offset] = *best;
      remove(places_.find(offset));
      if (size > bytes) add(offset + bytes, size - bytes);
      return offset;
    }
    // Nothing fits: grow at the top, beginning in a free place that ends there.
    uint64_t offset = top_;
    if (!places_.empty()) {
      const auto last = std::prev(places_.end());
      if (last->first + last->second == top_) {
        offset = last->first;
        remove(last);
      }
    }
    top_ = offset + bytes;
    return offset;
  }
  void give_back(uint64_t offset, uint64_t bytes) {
    if (bytes == 0) return;
    const auto next = places_.upper_bound(offset);
    const auto before = next == places_.begin() ? places_.end() : std::prev(next);
    if (next != places_.end() && offset + bytes == next->first) {
      bytes += next->second;
      remove(next);
    }
    if (before != places_.end() && before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      remove(before);
    }
    add(offset, bytes);
  }

 private:
  using Places = std::map<uint64_t, uint64_t>;
  void add(uint64_t offset, uint64_t bytes) {
    places_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void remove(Places::iterator place) {
    by_size_.erase({place->second, place->first});
    places_.erase(place);
  }

  Places places_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (size, offset)
  uint64_t top_;
};

// The end of the resident buffers, which lie together at the bottom.
uint64_t place_residents(const Places& places, const RankProgram* like) {
  RankProgram& rank = places.rank;
  uint64_t end = 0;
  if (like == nullptr) {
    for (uint32_t b = 0; b < rank.buffers.size(); ++b) {
      Buffer& buffer = rank.buffers[b];
      // Not one that nobody uses any more: where parameters are gathered, the whole ones of pass_blocks.
      if (!buffer.resident || !places.has(b)) continue;
      buffer.offset = end;
      end += places.aligned(buffer.bytes);
    }
    return end;
  }
  using Meaning = std::tuple<Role, uint16_t, uint16_t, uint16_t>;
  const auto meaning = [](const Buffer& b) { return Meaning(b.role, b.index, b.micro_batch, b.copy); };
  std::map<Meaning, const Buffer*> there;
  for (const Buffer& placed : like->buffers) {
    if (!placed.resident || placed.stored != places.stored) continue;
    end = std::max(end, places.aligned(placed.offset + placed.bytes));
    there.emplace(meaning(placed), &placed);
  }
  for (Buffer& buffer : rank.buffers) {
    if (buffer.stored != places.stored) continue;
    const auto placed = there.find(meaning(buffer));
    if (placed == there.end()) continue;
    Buffer moved = buffer;
    moved.offset = placed->second->offset;
    if (moved == *placed->second) buffer = moved;
  }
  return end;
}

// What lives through half of the step or more: accumulated gradients.
bool is_long(const RankProgram& rank, const Lifetime& life) {
  return 2 * (life.last - life.first) >= rank.actions.size();
}

// Gives every buffer that is not resident its place above `first`; returns the end of the highest. `long_first`: those
// that live long lie at the bottom for the whole step, so that they do not cut the rest in pieces.
uint64_t place_others(const Places& places, uint64_t first, bool long_first) {
  RankProgram& rank = places.rank;
  const std::vector<Lifetime>& lifetimes = places.lifetimes;
  const auto is_early = [&](uint32_t b) { return long_first && is_long(rank, lifetimes[b]); };
  uint64_t end = first;
  std::vector<std::vector<uint32_t>> begins(rank.actions.size()), ends(rank.actions.size());
  for (uint32_t b = 0; b < rank.buffers.size(); ++b) {
    if (rank.buffers[b].resident || !places.has(b)) continue;
    if (is_early(b)) {
      rank.buffers[b].offset = end;
      end += places.aligned(rank.buffers[b].bytes);
      continue;
    }
    begins[lifetimes[b].first].push_back(b);
    ends[lifetimes[b].last].push_back(b);
  }
  FreeList free(end);
  for (size_t i = 0; i < rank.actions.size(); ++i) {
    for (const uint32_t b : begins[i]) {
      rank.buffers[b].offset = free.take(places.aligned(rank.buffers[b].bytes));
      end = std::max(end, rank.buffers[b].offset + places.aligned(rank.buffers[b].bytes));
    }
    for (const uint32_t b : ends[i]) free.give_back(rank.buffers[b].offset, places.aligned(rank.buffers[b].bytes));
  }
  return end;
}

}  // namespace

Program pass_place_buffers(Program program, const StepShape& shape) {
  for (size_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    RankProgram& rank = program.by_pipeline_rank[r];
    const RankProgram* const like = shape.resident == nullptr ? nullptr : &shape.resident->by_pipeline_rank[r];
    const std::vector<Lifetime> lifetimes = buffer_lifetimes(rank);
    const bool has_store = std::ranges::any_of(rank.buffers, &Buffer::stored);
    for (const bool stored : {false, true}) {
      const Places places{rank, lifetimes, stored, has_store ? disk_block : cache_line};
      const uint64_t first = place_residents(places, like);
      const uint64_t with_long_first = place_others(places, first, true);
      if (place_others(places, first, false) > with_long_first) place_others(places, first, true);
      uint64_t& bytes = stored ? rank.store_bytes : rank.arena_bytes;
      bytes = 0;
      for (uint32_t b = 0; b < rank.buffers.size(); ++b)
        if (places.has(b)) bytes = std::max(bytes, rank.buffers[b].offset + rank.buffers[b].bytes);
    }
  }
  return program;
}

}  // namespace shardpipe
