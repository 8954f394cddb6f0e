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
  if (trains && !gives_data(from_file) && !gives_data(read.settings))
    problems.emplace_back("--data: found none, allowed: one or more files");
  const RunConfig config = resolve(from_file, read.settings, problems);

  if (read.print_config) {
    fmt::print("{}", print_config(config));
    return 0;
  }
  return read.dry_run ? run_dry(config) : run_train(config);
}

}  // namespace shardpipe::cli
