// The actions that move data, bound to a communicator: the same for every machine of a CPU.
#pragma once
#include <algorithm>

#include "engine/bind.h"

namespace shardpipe {

// Addresses of buffers, remembering how far they reached.
struct ArenaView {
  std::byte* base;
  uint64_t* highest_byte;
  template <typename T>
  T* get(const Buffer& buffer) const {
    *highest_byte = std::max(*highest_byte, buffer.offset + buffer.bytes);
    return reinterpret_cast<T*>(base + buffer.offset);
  }
};

BoundAction bind_communication(const Program&, const StepShape&, const RankPlace&, ArenaView, const Action&);

}  // namespace shardpipe
