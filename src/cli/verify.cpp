// shardpipe verify
#include <fmt/core.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/settings.h"

namespace shardpipe::cli {
namespace {

// A small model and few steps are enough to compare; a file or a flag wins.
void add_default(Settings& settings, std::string_view name, Value value) {
  const auto is_it = [&](const Option* option) { return option->name == name; };
  const bool given =
      std::ranges::any_of(settings.given, [&](const Setting& setting) { return is_it(setting.option); }) ||
      std::ranges::any_of(settings.unreadable, is_it);
  if (!given)
    settings.given.push_back(
        {&*std::ranges::find(options(), name, &Option::name), std::move(value), "the defaults of verify"});
}

}  // namespace

int verify_command(std::span<const std::string> arguments) {
  const Arguments read = read_arguments(Command::Verify, arguments);
  if (read.help) {
    fmt::print("{}", help_of(Command::Verify));
    return 0;
  }
  Settings from_file = read.config_file.empty() ? Settings{} : read_config_file(read.config_file);
  add_default(from_file, "model", "gpt2-tiny");
  add_default(from_file, "steps", int64_t{3});
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
