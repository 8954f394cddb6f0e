// shardpipe matrix
#include "train/matrix.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/settings.h"

namespace shardpipe::cli {

int matrix_command(std::span<const std::string> arguments) {
  const Arguments read = read_arguments(Command::Matrix, arguments);
  if (read.help) {
    fmt::print("{}", help_of(Command::Matrix));
    return 0;
  }
  Settings from_file = read.config_file.empty() ? Settings{} : read_config_file(read.config_file);
  for (const auto& [name, value] : std::vector<std::pair<std::string_view, Value>>{
           {"model", "gpt2-tiny"}, {"steps", int64_t{2}}, {"pp", int64_t{2}}, {"dp", int64_t{2}}})
    add_default(from_file, name, value, "the defaults of matrix");
  RunConfig config = resolve(from_file, read.settings);
  if (!config.layout.zero_of_ranks.empty())
    throw InputError(fmt::format("--zero {}: found a stage for each pipeline rank, allowed of matrix: one for all",
                                 config.layout.zero_text()));
  if (read.print_config) {
    fmt::print("{}", print_config(config));
    return 0;
  }
  // What is given is no axis: one value of it.
  const auto given = [&](std::string_view name) {
    return std::ranges::any_of(
        std::array<const Settings*, 2>{&from_file, &read.settings}, [&](const Settings* settings) {
          return std::ranges::any_of(settings->given, [&](const Setting& s) { return s.option->name == name; });
        });
  };
  const Layout& layout = config.layout;
  MatrixAxes axes;
  if (given("zero")) axes.zero = {layout.zero};
  if (given("schedule")) axes.schedules = {layout.schedule};
  if (given("offload")) axes.offloads = {layout.offload};
  if (given("precision")) axes.precisions = {layout.precision};
  if (given("recompute")) axes.recomputes = {layout.recompute};
  axes.reduce_every_follows_zero = !given("reduce-every");
  config.out.clear();
  config.trace = false;
  return matrix(config, axes, read.train) ? 0 : 1;
}

}  // namespace shardpipe::cli
