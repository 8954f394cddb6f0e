// The subcommands, and what they call when the command line is right.
#pragma once
#include <span>
#include <string>

#include "train/run_config.h"

namespace shardpipe::cli {

// Each reads its flags and returns the exit code; InputError with every mistake. Nothing is written before all flags
// are right.
int train_command(std::span<const std::string> arguments);
int verify_command(std::span<const std::string> arguments);
int matrix_command(std::span<const std::string> arguments);
int plan_command(std::span<const std::string> arguments);
int show_command(std::span<const std::string> arguments);

// What is done with a right configuration; each returns the exit code.
int run_train(const RunConfig&);
int run_timed(const RunConfig&);  // of a synthetic model
int run_dry(const RunConfig&);  // --dry-run: compile and check the program, print the layout as a table, write nothing
int run_verify(const RunConfig&);  // data.data may be empty: tokens are drawn from the seed; out is empty

}  // namespace shardpipe::cli
