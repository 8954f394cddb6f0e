// Where the command line ends and the work begins.
#include "base/error.h"
#include "cli/commands.h"

namespace shardpipe::cli {

int run_train(const RunConfig&) { throw InvariantError("this build has no trainer"); }
int run_dry(const RunConfig&) { throw InvariantError("this build has no program to compile"); }
int run_verify(const RunConfig&) { throw InvariantError("this build has no trainer to verify"); }

}  // namespace shardpipe::cli
