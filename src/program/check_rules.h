// The rules of check(), each in a file of its own, check_*.cpp. Each appends what it finds.
#pragma once
#include <vector>

#include "program/check.h"

namespace shardpipe {

void check_structure(const Program&, std::vector<Finding>&);  // indices in range, waits backwards, buffers in the arena
void check_groups(const Program&, std::vector<Finding>&);     // members agree on order, kinds, names and bytes
void check_progress(const Program&, const ChannelModel&, std::vector<Finding>&);  // nothing waits for ever
void check_order(const Program&, uint16_t rank,
                 std::vector<Finding>&);                    // conflicting uses are ordered, values are there
void check_meaning(const Program&, std::vector<Finding>&);  // actions use the buffers that their names say
void check_store(const Program&, uint16_t rank,
                 std::vector<Finding>&);                         // what it keeps is copied right, no change is lost
void check_completeness(const Program&, std::vector<Finding>&);  // every micro-batch, gradient and parameter, once

std::string place(const Program&, size_t rank, size_t action);  // "rank 2, action 118: compute F b7 m3 …"

}  // namespace shardpipe
