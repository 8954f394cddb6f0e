// What `shardpipe plan` says: its table, the picture of one row, JSON, advice, and the same layout in the settings of
// other trainers.
#pragma once
#include <string>
#include <vector>

#include "plan/search.h"
#include "train/run_config.h"

namespace shardpipe::cli {

struct PlanQuestion {
  RunConfig config;         // its model, batch, precision and optimizer
  std::string model_flags;  // "--model llama-8b --seq-len 4096": what a train command must repeat
  PlanRequest request;
  double tokens = 0;  // to train on; 0: not said
};

// The command that trains with a layout of the question's model and batch.
std::string train_command_of(const PlanQuestion&, const Layout&);

// Each ends in a line break.
std::string table_of(const PlanQuestion&, const PlanResult&);
std::string advice_on(const PlanQuestion&, const PlanResult&);
std::string json_of(const PlanQuestion&, const PlanResult&);
// Bytes, seconds and the picture of row `row` (from 1), for a terminal of so many columns.
std::string explained(const PlanQuestion&, const PricedLayout&, int64_t row, int columns, bool color);

// InputError: why nothing fits, and the smallest changes with which something does.
[[noreturn]] void refuse(const PlanQuestion&, const PlanResult&);

// A layout in the settings of another trainer, and what of it that one cannot do, or does otherwise: a line each.
struct Emitted {
  std::string settings;
  std::vector<std::string> notes;
};
std::vector<std::string> frameworks();  // deepspeed, megatron, torchtitan
Emitted emit(const PlanQuestion&, const Layout&, std::string_view framework);

}  // namespace shardpipe::cli
