#include <unistd.h>

#include <cerrno>

#include "device/block_queue.h"

namespace shardpipe {
namespace {

class PlainQueue final : public BlockQueue {
 public:
  int move(int file, Direction direction, uint64_t offset, std::byte* memory, uint64_t bytes) override {
    for (uint64_t done = 0; done < bytes;) {
      const auto at = static_cast<off_t>(offset + done);
      const ssize_t moved = direction == Direction::Read ? pread(file, memory + done, bytes - done, at)
                                                         : pwrite(file, memory + done, bytes - done, at);
      if (moved < 0 && errno != EINTR && errno != EAGAIN) return errno;
      if (moved == 0) return ENODATA;
      if (moved > 0) done += static_cast<uint64_t>(moved);
    }
    return 0;
  }
};

}  // namespace

std::unique_ptr<BlockQueue> make_plain_queue() { return std::make_unique<PlainQueue>(); }

}  // namespace shardpipe
