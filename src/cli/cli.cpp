#include "cli/cli.h"

#include <fmt/core.h>

#include <array>
#include <exception>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/nearest_name.h"
#include "cli/commands.h"
#include "cli/help.h"

namespace shardpipe {
namespace {

void print_error(std::string_view problem) { fmt::print(stderr, "shardpipe: {}\n", problem); }

int dispatch(std::vector<std::string> arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    fmt::print("{}", cli::overview());
    return 0;
  }
  if (arguments[0] == "--version") {
    fmt::print("shardpipe {}\n", SHARDPIPE_VERSION);
    return 0;
  }
  const std::span<const std::string> rest(arguments.begin() + 1, arguments.end());
  if (arguments[0] == "train") return cli::train_command(rest);
  if (arguments[0] == "verify") return cli::verify_command(rest);
  if (arguments[0] == "matrix") return cli::matrix_command(rest);
  if (arguments[0] == "plan") return cli::plan_command(rest);
  if (arguments[0] == "show") return cli::show_command(rest);
  const std::array<std::string, 5> commands{"train", "verify", "matrix", "plan", "show"};
  throw InputError(fmt::format("found '{}', which is no subcommand; allowed: {}{}", arguments[0],
                               fmt::join(commands, ", "), did_you_mean(arguments[0], commands)));
}

}  // namespace

int cli_main(int argc, char** argv) {
  try {
    return dispatch({argv + (argc > 0 ? 1 : 0), argv + argc});
  } catch (const InputError& error) {
    for (const std::string& problem : error.problems()) print_error(problem);
    return 2;
  } catch (const std::exception& error) {
    print_error(error.what());
    return 1;
  }
}

}  // namespace shardpipe
