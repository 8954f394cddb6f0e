#include "train/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <vector>

#include "base/error.h"

namespace shardpipe {
namespace {

Hash hash_bytes(const void* data, size_t bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
  Hash hash;
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), hash.begin());
  return hash;
}

}  // namespace

Hash hash_tensor(std::span<const float> values) { return hash_bytes(values.data(), values.size_bytes()); }

std::string params_digest(const Model& model, const std::map<std::string, Hash>& by_tensor) {
  std::vector<unsigned char> all;
  for (const ParameterGroup& group : model.groups)
    for (const Tensor& tensor : group.tensors) {
      const auto found = by_tensor.find(tensor.name);
      check_invariant(found != by_tensor.end(), "no rank holds {}", tensor.name);
      all.insert(all.end(), found->second.begin(), found->second.end());
    }
  const Hash hash = hash_bytes(all.data(), all.size());
  return fmt::format("{:02x}", fmt::join(hash, ""));
}

}  // namespace shardpipe
