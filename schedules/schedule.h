// A pipeline schedule as data: for each pipeline rank, the order of its forward and backward passes. Knows no model and
// no device. A generator is one short file that names its idea and its paper; `schedule_names()` lists them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardpipe {

enum class Pass : uint8_t { Forward, Backward };

// One cell: a pass of one chunk (a contiguous range of blocks; with one chunk a rank, chunk = rank) over one
// micro-batch.
struct Cell {
  Pass pass;
  uint16_t chunk;
  uint16_t micro_batch;
  bool operator==(const Cell&) const = default;
};

struct Schedule {
  std::string name;
  uint16_t chunks = 0;
  uint16_t micro_batches = 0;
  std::vector<uint16_t> rank_of_chunk;
  std::vector<std::vector<Cell>> by_rank;
};

// GPipe (Huang et al., arXiv:1811.06965): all forwards, then all backwards.
Schedule gpipe(uint16_t ranks, uint16_t micro_batches);
// 1F1B, PipeDream-Flush (Narayanan et al., arXiv:2006.09503; Megatron-LM, arXiv:2104.04473, figure 4).
Schedule one_forward_one_backward(uint16_t ranks, uint16_t micro_batches);

std::vector<std::string> schedule_names();  // "gpipe", "1f1b"
bool is_schedule(std::string_view name);
// Requires is_schedule(name), ranks >= 1 and micro_batches >= 1.
Schedule make_schedule(std::string_view name, uint16_t ranks, uint16_t micro_batches);

// "0F3" or "1B0", as PyTorch's pipelining prints an action.
std::string to_string(const Cell&);

}  // namespace shardpipe
