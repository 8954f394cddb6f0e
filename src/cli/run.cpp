// Where the command line ends and the work begins.
#include "train/run.h"

#include "train/timed_run.h"

#include "cli/commands.h"
#include "cli/options.h"

namespace shardpipe::cli {

int run_train(const RunConfig& config) { return run(config, print_config(config)) == RunEnd::Finished ? 0 : 1; }

int run_timed(const RunConfig& config) {
  timed_run(config, print_config(config));
  return 0;
}

int run_dry(const RunConfig& config) {
  dry_run(config);
  return 0;
}

int run_verify(const RunConfig& config) { return verify(config) ? 0 : 1; }

}  // namespace shardpipe::cli
