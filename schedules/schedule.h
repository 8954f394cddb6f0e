// A pipeline schedule as data: for each pipeline rank, the order of its forward and backward passes. Knows no model and
// no device. A generator is one short file that names its idea and its paper; `generators()` lists them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardpipe {

enum class Pass : uint8_t {
  Forward,
  Backward,        // whole: BackwardInput, then BackwardWeight
  BackwardInput,   // gradient of the chunk's input: what the chunk before it waits for
  BackwardWeight,  // gradients of its parameters: nobody waits for them, so they can fill a bubble
};

// One cell: a pass of one chunk (a contiguous range of blocks; with one chunk a rank, chunk = rank) over one
// micro-batch.
struct Cell {
  Pass pass;
  uint16_t chunk;
  uint16_t micro_batch;
  bool with_next = false;  // runs together with the next cell of its rank: DualPipe's overlapped forward and backward
  bool operator==(const Cell&) const = default;
};

struct Schedule {
  std::string name;
  uint16_t chunks = 0;
  uint16_t micro_batches = 0;
  std::vector<uint16_t> rank_of_chunk;
  std::vector<std::vector<Cell>> by_rank;
  bool operator==(const Schedule&) const = default;
};

// Durations of one chunk's passes and of the message between two ranks, in any one unit. A whole backward takes both
// parts. A message delays its reader and occupies no rank.
struct PassCosts {
  double forward = 1, backward_input = 1, backward_weight = 1, transfer = 0;
  bool operator==(const PassCosts&) const = default;
};

// What a schedule is made for.
struct ScheduleRequest {
  uint16_t ranks = 1, micro_batches = 1;  // >= 1
  uint16_t chunks_per_rank = 1;           // one that the generator allows
  PassCosts costs{};                      // of every chunk: where a generator places weight parts, these decide
};

struct Generator {
  std::string_view name;                              // "zb-h1": what --schedule says
  std::string_view summary;                           // one line for help
  uint16_t fewest_chunks, most_chunks, usual_chunks;  // a rank
  Schedule (*make)(const ScheduleRequest&);
};
std::span<const Generator> generators();
const Generator* find_generator(std::string_view name);  // null where none is called so
std::vector<std::string> schedule_names();               // of all generators, in their order

// InvariantError where no generator has the name, or it allows no such number of chunks. 0 chunks: the usual number.
Schedule make_schedule(std::string_view name, ScheduleRequest);

// GPipe (Huang et al., arXiv:1811.06965): all forwards, then all backwards.
Schedule gpipe(const ScheduleRequest&);
// 1F1B, PipeDream-Flush (Narayanan et al., arXiv:2006.09503; Megatron-LM, arXiv:2104.04473, figure 4).
Schedule one_forward_one_backward(const ScheduleRequest&);
// Interleaved 1F1B (Megatron-LM, arXiv:2104.04473, figure 4 bottom): v chunks a rank, any m.
Schedule interleaved(const ScheduleRequest&);
// Breadth-first looped pipeline (Lamy-Poirier, arXiv:2211.05953): v chunks a rank, each passed by all micro-batches.
Schedule looped_bfs(const ScheduleRequest&);
// Zero bubble, handcrafted (Qi et al., arXiv:2401.10241, section 2): H1 with the memory of 1F1B, H2 with twice that.
Schedule zb_h1(const ScheduleRequest&);
Schedule zb_h2(const ScheduleRequest&);
// Zero bubble over a V of two chunks a rank (same paper, section 6), placed by the costs.
Schedule zb_v(const ScheduleRequest&);
// V-shaped with less memory (Qi et al., arXiv:2405.15362), placed by the costs.
Schedule v_half(const ScheduleRequest&);
Schedule v_min(const ScheduleRequest&);
// DualPipeV (DeepSeek-AI; torch.distributed.pipelining has the same): cells that run together.
Schedule dualpipe_v(const ScheduleRequest&);

char letter(Pass);  // F, B, I, W, as PyTorch's pipelining names them
// "0F3" or "1B0", as PyTorch's pipelining prints an action.
std::string to_string(const Cell&);

}  // namespace shardpipe
