// The one clock by which all durations are measured.
#pragma once
#include <chrono>

namespace shardpipe {

// Since some moment before the process began; never goes back.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace shardpipe
