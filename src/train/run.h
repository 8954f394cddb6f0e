// One training run as a person starts it: text in, a folder with config.toml, metrics.jsonl and summary.json out.
#pragma once
#include <string>
#include <vector>

#include "engine/rank.h"
#include "train/run_config.h"

namespace shardpipe {

enum class RunEnd { Finished, Interrupted };

// config has no problems_of; config_text is written as config.toml. InputError, with all that is wrong, for data and
// output folder before anything is written. Progress and warnings go to stderr, the outcome to stdout. On SIGINT or
// SIGTERM the step in work is finished and the summary written; a second signal ends the process at once.
RunEnd run(const RunConfig& config, const std::string& config_text);

// Compiles and checks the step's program and prints what each rank would hold and send. Opens no file, writes nothing.
void dry_run(const RunConfig& config);

// Runs the layout, and the same steps straight down on one plain rank, and compares activations, gradients, loss, norm
// and weights bit by bit. Prints the first difference (step, tensor, micro-batch, element, units in the last place) or
// "equal, N tensors, K steps"; true when equal.
bool verify(const RunConfig& config);

// Of all ranks together.
struct HeldBytes {
  uint64_t arena = 0, activations = 0;
  uint64_t store = 0;  // beside the arenas
};
HeldBytes held_bytes(const Step&);

// What commonly goes wrong with such a run, a line each with the numbers: few tokens for so many parameters, a text
// repeated often, activations that do not fit the machine's memory. training_tokens < 0: not known.
std::vector<std::string> warnings_of(const RunConfig& config, int64_t training_tokens, const HeldBytes& held);

}  // namespace shardpipe
