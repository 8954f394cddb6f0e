// params_digest: one 128-bit hash of all fp32 parameters, the same in every layout that holds the same bits. Each
// tensor is hashed where it lies; the digest is the hash of those hashes in canonical order, so no rank needs more than
// one parameter group at a time.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "model/shape/model.h"

namespace shardpipe {

using Hash = std::array<unsigned char, 16>;  // XXH3-128, canonical byte order
Hash hash_tensor(std::span<const float> values);

// 32 hex digits. Every tensor of the model must be there.
std::string params_digest(const Model&, const std::map<std::string, Hash>& by_tensor);

}  // namespace shardpipe
