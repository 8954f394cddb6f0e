#include "layout/layout.h"
namespace shardpipe {
std::vector<int64_t> balanced_stages(const Model& m, int64_t pp, MicroBatchShape) {
  const auto n = static_cast<int64_t>(m.blocks.size());
  std::vector<int64_t> s;
  for (int64_t i = 0; i < pp; ++i) s.push_back(n / pp + (i < n % pp ? 1 : 0));
  return s;
}
}  // namespace shardpipe
