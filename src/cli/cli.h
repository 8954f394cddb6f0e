// The command line: `shardpipe SUBCOMMAND flags…`. It parses and prints, nothing else.
#pragma once

namespace shardpipe {

// Returns the exit code: 0 success; 2 what the person wrote is wrong, each mistake a line on stderr that begins with
// "shardpipe: "; 1 anything else. Throws nothing.
int cli_main(int argc, char** argv);

}  // namespace shardpipe
