// --memory-limit: a layout that does not fit is refused before the first step, with what takes the most and the nearest
// layouts that fit.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/rank.h"
#include "train/run_config.h"

namespace shardpipe {

// "2500000000", "2.5GB" (10^9), "8GiB" (2^30), with k, M, G or T; "none" is the largest number. nullopt: no such text.
std::optional<uint64_t> bytes_in(std::string_view text);

// The arena of the rank that needs most.
uint64_t largest_arena(const Step&);

// InputError where a rank of `step`, which is compiled from config, needs more than config.memory_limit.
void require_memory_limit(const RunConfig& config, const Step& step);

}  // namespace shardpipe
