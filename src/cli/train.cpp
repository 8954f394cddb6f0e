// shardpipe train
#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/settings.h"

namespace shardpipe::cli {
namespace {

bool gives_data(const Settings& settings) {
  const auto names_files = [](const Option* option) { return option->name == "data"; };
  return std::ranges::any_of(settings.unreadable, names_files) ||
         std::ranges::any_of(settings.given, [&](const Setting& setting) {
           return names_files(setting.option) && !std::get<std::vector<std::string>>(setting.value).empty();
         });
}

// The flag wins over the file. Its blocks read no text.
bool is_synthetic_run(const Settings& from_file, const Settings& from_flags) {
  for (const Settings* settings : {&from_flags, &from_file})
    for (const Setting& setting : settings->given)
      if (setting.option->name == "model") return std::get<std::string>(setting.value) == "synthetic";
  return false;
}

}  // namespace

int train_command(std::span<const std::string> arguments) {
  const Arguments read = read_arguments(Command::Train, arguments);
  if (read.help) {
    fmt::print("{}", help_of(Command::Train));
    return 0;
  }
  const Settings from_file = read.config_file.empty() ? Settings{} : read_config_file(read.config_file);

  std::vector<std::string> problems;
  if (read.print_config && read.dry_run)
    problems.emplace_back("--print-config: found beside --dry-run, allowed: one of them");
  const bool trains = !read.print_config && !read.dry_run;
  const bool needs_data = trains && !is_synthetic_run(from_file, read.settings);
  if (needs_data && !gives_data(from_file) && !gives_data(read.settings))
    problems.emplace_back("--data: found none, allowed: one or more files");
  const RunConfig config = resolve(from_file, read.settings, problems);

  if (read.print_config) {
    fmt::print("{}", print_config(config));
    return 0;
  }
  if (read.dry_run) return run_dry(config);
  return is_synthetic(config.model) ? run_timed(config) : run_train(config);
}

}  // namespace shardpipe::cli
