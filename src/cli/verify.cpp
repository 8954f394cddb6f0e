// shardpipe verify
#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/settings.h"

namespace shardpipe::cli {
int verify_command(std::span<const std::string> arguments) {
  const Arguments read = read_arguments(Command::Verify, arguments);
  if (read.help) {
    fmt::print("{}", help_of(Command::Verify));
    return 0;
  }
  Settings from_file = read.config_file.empty() ? Settings{} : read_config_file(read.config_file);
  // A small model and few steps are enough to compare.
  add_default(from_file, "model", "gpt2-tiny", "the defaults of verify");
  add_default(from_file, "steps", int64_t{3}, "the defaults of verify");
  RunConfig config = resolve(from_file, read.settings);
  if (read.print_config) {
    fmt::print("{}", print_config(config));
    return 0;
  }
  config.out.clear();  // a run's config.toml may be verified: its folder stays as it is
  config.trace = false;
  return run_verify(config);
}

}  // namespace shardpipe::cli
