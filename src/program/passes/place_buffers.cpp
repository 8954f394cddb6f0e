// Addresses, in the arena and in the store alike: resident buffers first, then the others in issue order, each in the
// smallest free place that holds it; where that leaves much unused, the largest first (Pisarchyk and Lee,
// arXiv:2001.03288, "greedy by size"). A place is free again after its buffer's last use. Reusing it orders the two
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
  using ByOffset = std::map<uint64_t, uint64_t>;
  void add(uint64_t offset, uint64_t bytes) {
    places_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void remove(ByOffset::iterator place) {
    by_size_.erase({place->second, place->first});
    places_.erase(place);
  }

  ByOffset places_;
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

// The most bytes that live at once, from `first` on.
uint64_t peak_of(const Places& places, uint64_t first) {
  const RankProgram& rank = places.rank;
  std::vector<uint64_t> begins(rank.actions.size() + 1, 0), ends(rank.actions.size() + 1, 0);
  for (uint32_t b = 0; b < rank.buffers.size(); ++b) {
    if (rank.buffers[b].resident || !places.has(b)) continue;
    begins[places.lifetimes[b].first] += places.aligned(rank.buffers[b].bytes);
    ends[places.lifetimes[b].last + 1] += places.aligned(rank.buffers[b].bytes);
  }
  uint64_t live = first, peak = first;
  for (size_t i = 0; i < begins.size(); ++i) {
    live = live - ends[i] + begins[i];
    peak = std::max(peak, live);
  }
  return peak;
}

// As place_others, but the largest first, each at the lowest address that is free for as long as it lives: tight, and
// quadratic.
uint64_t place_by_size(const Places& places, uint64_t first) {
  RankProgram& rank = places.rank;
  std::vector<uint32_t> by_size, placed;  // placed: by address
  for (uint32_t b = 0; b < rank.buffers.size(); ++b)
    if (!rank.buffers[b].resident && places.has(b)) by_size.push_back(b);
  std::ranges::stable_sort(by_size, std::ranges::greater{}, [&](uint32_t b) { return rank.buffers[b].bytes; });
  uint64_t top = first;
  for (const uint32_t b : by_size) {
    const Lifetime& life = places.lifetimes[b];
    const uint64_t bytes = places.aligned(rank.buffers[b].bytes);
    uint64_t offset = first;
    for (const uint32_t other : placed) {
      const Lifetime& its_life = places.lifetimes[other];
      if (its_life.last < life.first || life.last < its_life.first) continue;
      if (rank.buffers[other].offset >= offset + bytes) break;
      offset = std::max(offset, rank.buffers[other].offset + places.aligned(rank.buffers[other].bytes));
    }
    rank.buffers[b].offset = offset;
    top = std::max(top, offset + bytes);
    placed.insert(std::ranges::upper_bound(placed, offset, {}, [&](uint32_t p) { return rank.buffers[p].offset; }), b);
  }
  return top;
}

// The best of the three ways.
void place(const Places& places, uint64_t first) {
  const uint64_t with_long_first = place_others(places, first, true), without = place_others(places, first, false);
  const uint64_t best = std::min(with_long_first, without);
  constexpr size_t many_buffers = 20'000;  // beyond, the third way takes longer than it is worth
  const bool is_tight = best <= peak_of(places, first) * 11 / 10;
  if (!is_tight && places.rank.buffers.size() <= many_buffers && place_by_size(places, first) < best) return;
  place_others(places, first, with_long_first < without);
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
      place(places, place_residents(places, like));
      uint64_t& bytes = stored ? rank.store_bytes : rank.arena_bytes;
      bytes = 0;
      for (uint32_t b = 0; b < rank.buffers.size(); ++b)
        if (places.has(b)) bytes = std::max(bytes, rank.buffers[b].offset + rank.buffers[b].bytes);
    }
  }
  return program;
}

}  // namespace shardpipe
