// From what a person wrote to a RunConfig: read the command line and the TOML file into settings, then resolve them.
// Mistakes are gathered on the way and told all at once.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"

namespace shardpipe::cli {

// One option that was given, and where: "--pp" or "run.toml:3: pp".
struct Setting {
  const Option* option;
  Value value;
  std::string where;
};

struct Settings {
  std::vector<Setting> given;             // at most one an option
  std::vector<const Option*> unreadable;  // given, with a value that is none; the problems say so
  std::vector<std::string> problems;
};

// A subcommand's flags, as they stand on the command line.
struct Arguments {
  Settings settings;
  std::string config_file;  // --config; empty: none
  bool help = false, print_config = false, dry_run = false, train = false;
};

enum class Command : uint8_t { Train, Verify, Show, Matrix, Plan };
bool belongs(const Option&, Command);            // whether one of options() is a flag of the command
std::vector<const Option*> options_of(Command);  // all its flags, in the order of --help

// `--flag value` and `--flag=value`. The value of a flag may begin with one dash (a negative number) but not with two.
Arguments read_arguments(Command, std::span<const std::string> arguments);

// Whether --model names a file: a Hugging Face config.json; and its sizes, for the options that nothing else gives.
// InputError where it cannot be read.
bool names_model_file(std::string_view model);
Settings read_model_file(const std::string& path);

// A flat TOML file: every key is an option, its value has the option's type.
Settings read_config_file(const std::string& path);
Settings read_config_text(std::string_view toml, const std::string& path);  // `path` is for messages

// A command's own default: what the file or a flag gives wins over it. `where` is for messages.
void add_default(Settings& from_file, std::string_view name, Value, std::string where);

// Later settings win over earlier ones: a flag over the file. Fills in the preset and every default that depends on
// other options. InputError with every problem: those of reading and those of problems_of(RunConfig).
RunConfig resolve(const Settings& from_file, const Settings& from_flags,
                  std::vector<std::string> further_problems = {});

}  // namespace shardpipe::cli
