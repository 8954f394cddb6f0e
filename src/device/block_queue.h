// Moves whole blocks between a file and memory, in one direction at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace shardpipe {

enum class Direction : uint8_t { Read, Write };

class BlockQueue {
 public:
  virtual ~BlockQueue() = default;
  // All `bytes` from `offset` on; goes on after a part, and after an interruption. Returns 0, or the system's error
  // number once nothing is under way any more; ENODATA where the file ends before.
  virtual int move(int file, Direction, uint64_t offset, std::byte* memory, uint64_t bytes) = 0;
};

std::unique_ptr<BlockQueue> make_plain_queue();  // one request after the other
// Several at once (io_uring); null where this build or this system has none.
std::unique_ptr<BlockQueue> make_uring_queue();

}  // namespace shardpipe
