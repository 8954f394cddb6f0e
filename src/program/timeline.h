// When actions run, simulated or measured: the same type from both.
#pragma once
#include <vector>

namespace shardpipe {

struct Span {
  double begin_seconds = 0, end_seconds = 0;
};
using Timeline = std::vector<Span>;  // one a action of a rank's program, in their order

}  // namespace shardpipe
