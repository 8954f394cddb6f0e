// The actions that move data, bound to a communicator: the same for every machine of a CPU.
#pragma once
#include <algorithm>

#include "base/error.h"
#include "engine/bind.h"
#include "program/text.h"

namespace shardpipe {

// Addresses of buffers, remembering how far they reached.
struct ArenaView {
  std::byte* base;
  uint64_t* highest_byte;
  template <typename T>
  T* get(const Buffer& buffer) const {
    check_invariant(!buffer.stored, "{} lies in the store and is used in the arena", name_of(buffer));
    *highest_byte = std::max(*highest_byte, buffer.offset + buffer.bytes);
    return reinterpret_cast<T*>(base + buffer.offset);
  }
};

BoundAction bind_communication(const Program&, const StepShape&, const RankPlace&, ArenaView, const Action&);

}  // namespace shardpipe
