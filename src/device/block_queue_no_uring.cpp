// For a build without liburing.
#include "device/block_queue.h"

namespace shardpipe {

std::unique_ptr<BlockQueue> make_uring_queue() { return nullptr; }

}  // namespace shardpipe
