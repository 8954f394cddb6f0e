// Reads a subcommand's flags. Written by hand because every mistake is to be told, not the first one, and because
// nothing may be guessed: no abbreviations, no flag taken for another flag's value.
#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/nearest_name.h"
#include "cli/settings.h"

namespace shardpipe::cli {
namespace {

struct Flag {
  std::string name;                  // without its dashes
  std::optional<std::string> value;  // after '=', or the next argument
};

bool begins_a_flag(std::string_view argument) { return argument.starts_with("--"); }

class Reader {
 public:
  Reader(Command command, std::span<const std::string> arguments) : command_(command), rest_(arguments) {}

  Arguments read() {
    while (!rest_.empty()) {
      const std::string argument = rest_.front();
      rest_ = rest_.subspan(1);
      if (argument == "-h") {
        result_.help = true;
      } else if (argument.starts_with("-") && argument.size() > 1) {
        take_flag(argument);
      } else {
        problem("found '{}', which no flag takes; allowed: flags, which begin with --", argument);
      }
    }
    if (!model_file_.empty()) add_model_file();
    return std::move(result_);
  }

 private:
  template <typename... Args>
  void problem(fmt::format_string<Args...> text, Args&&... args) {
    result_.settings.problems.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  void take_flag(const std::string& argument) {
    const size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    std::optional<std::string> value;
    if (equals != std::string::npos) value = argument.substr(equals + 1);
    const std::string name = begins_a_flag(flag) ? flag.substr(2) : "";

    if (name == "help") return take_switch(flag, value, result_.help);
    if (name == "print-config" && prints_config()) return take_switch(flag, value, result_.print_config);
    if (name == "dry-run" && command_ == Command::Train) return take_switch(flag, value, result_.dry_run);
    if (name == "train" && command_ == Command::Matrix) return take_switch(flag, value, result_.train);
    if (name == "config" && takes_config()) return take_config(value);
    for (const Option* option : options_of(command_)) {
      if (name.empty()) break;
      if (option->kind == Kind::Switch && (name == option->name || name == option->opposite))
        return take_boolean(*option, flag, value, name == option->name);
      if (name == option->name) return take_option(*option, flag, value);
    }
    problem(
        "{}: found an unknown flag of {}, allowed: those that --help lists{}", flag, command_name(),
        did_you_mean(flag.substr(flag.find_first_not_of('-') == std::string::npos ? 0 : flag.find_first_not_of('-')),
                     known_names(), "--"));
    if (!value) next_value();  // most likely its value: not a mistake of its own
  }

  std::optional<std::string> next_value() {
    if (rest_.empty() || begins_a_flag(rest_.front())) return std::nullopt;
    std::string value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }

  void take_switch(const std::string& flag, const std::optional<std::string>& value, bool& target) {
    if (value) return problem("{}: found the value '{}', allowed: {} without a value", flag, *value, flag);
    if (target && flag != "--help") return problem("{}: found twice, allowed: once", flag);
    target = true;
  }

  void take_config(std::optional<std::string> value) {
    if (!value) value = next_value();
    if (config_seen_) return problem("--config: found twice, allowed: once");
    config_seen_ = true;
    if (!value || value->empty()) return problem("--config: found no value, allowed: the name of a TOML file");
    result_.config_file = *value;
  }

  void take_boolean(const Option& option, const std::string& flag, const std::optional<std::string>& value, bool yes) {
    if (value) {
      problem("{}: found the value '{}', allowed: {}", flag, *value, allowed(option));
      result_.settings.unreadable.push_back(&option);
      return;
    }
    store(option, flag, yes);
  }

  void take_option(const Option& option, const std::string& flag, std::optional<std::string> text) {
    if (!text) text = next_value();
    if (option.name == "model" && text && names_model_file(*text)) {
      if (!model_file_.empty()) problem("{}: found twice, allowed: once", flag);
      model_file_ = *text;
      return;
    }
    try {
      store(option, flag, parse_value(option, text.value_or("")));
    } catch (const InputError& error) {
      problem("{}: {}", flag, error.what());
      result_.settings.unreadable.push_back(&option);
    }
  }

  void store(const Option& option, const std::string& flag, Value value) {
    std::vector<Setting>& given = result_.settings.given;
    const auto before = std::ranges::find(given, &option, &Setting::option);
    if (before == given.end()) {
      given.push_back({&option, std::move(value), flag});
    } else if (option.kind == Kind::Files) {
      auto& files = std::get<std::vector<std::string>>(before->value);
      const auto& more = std::get<std::vector<std::string>>(value);
      files.insert(files.end(), more.begin(), more.end());
    } else if (before->where == flag) {
      problem("{}: found twice, allowed: once", flag);
    } else {
      problem("{}: found beside {}, allowed: one of them", flag, before->where);
    }
  }

  // What a flag says wins over the file.
  void add_model_file() try {
    Settings& settings = result_.settings;
    const auto takes = [&](const Setting& setting) {
      return std::ranges::none_of(settings.given, [&](const Setting& own) { return own.option == setting.option; }) &&
             std::ranges::none_of(settings.unreadable, [&](const Option* own) { return own == setting.option; });
    };
    const Settings file = read_model_file(model_file_);
    std::ranges::copy_if(file.given, std::back_inserter(settings.given), takes);
    settings.unreadable.insert(settings.unreadable.end(), file.unreadable.begin(), file.unreadable.end());
    settings.problems.insert(settings.problems.end(), file.problems.begin(), file.problems.end());
    if (file.given.empty()) mark_model_unreadable();
  } catch (const InputError& error) {
    result_.settings.problems.insert(result_.settings.problems.end(), error.problems().begin(), error.problems().end());
    mark_model_unreadable();
  }

  // No rule is told of sizes that nobody knows.
  void mark_model_unreadable() {
    for (const Option& option : options())
      if (option.group == "Model") result_.settings.unreadable.push_back(&option);
  }

  bool takes_config() const { return command_ != Command::Show; }
  bool prints_config() const { return takes_config() && command_ != Command::Plan; }
  std::string_view command_name() const {
    return command_ == Command::Train    ? "train"
           : command_ == Command::Verify ? "verify"
           : command_ == Command::Matrix ? "matrix"
           : command_ == Command::Plan   ? "plan"
                                         : "show";
  }

  std::vector<std::string> known_names() const {
    std::vector<std::string> names{"help"};
    if (takes_config()) names.emplace_back("config");
    if (prints_config()) names.emplace_back("print-config");
    if (command_ == Command::Train) names.emplace_back("dry-run");
    if (command_ == Command::Matrix) names.emplace_back("train");
    for (const Option* option : options_of(command_)) {
      names.push_back(option->name);
      if (!option->opposite.empty()) names.push_back(option->opposite);
    }
    return names;
  }

  Command command_;
  std::span<const std::string> rest_;
  Arguments result_;
  std::string model_file_;  // empty: --model names none
  bool config_seen_ = false;
};

}  // namespace

// What a plan does not vary, and what it takes for one value of all ranks.
constexpr std::array<std::string_view, 6> not_of_plan{"stages",       "reproducible", "reshard-after-forward",
                                                      "memory-limit", "offload-to",   "offload-piece"};

bool belongs(const Option& option, Command command) {
  if (command == Command::Plan)
    return (option.group == "Model" && option.name != "block-cost") || option.name == "optimizer" ||
           (option.group == "Layout" && std::ranges::find(not_of_plan, option.name) == not_of_plan.end());
  if (command == Command::Matrix)  // which trains on tokens of the seed
    return (option.of_verify && option.group != "Data") || option.name == "memory-limit";
  return command != Command::Verify || option.of_verify;
}

std::vector<const Option*> options_of(Command command) {
  std::vector<const Option*> found;
  if (command != Command::Show)
    for (const Option& option : options())
      if (belongs(option, command)) found.push_back(&option);
  if (command == Command::Show || command == Command::Plan)
    for (const Option& option : command == Command::Show ? show_options() : plan_options()) found.push_back(&option);
  return found;
}

void add_default(Settings& from_file, std::string_view name, Value value, std::string where) {
  const auto is_it = [&](const Option* option) { return option->name == name; };
  const bool given =
      std::ranges::any_of(from_file.given, [&](const Setting& setting) { return is_it(setting.option); }) ||
      std::ranges::any_of(from_file.unreadable, is_it);
  if (!given) from_file.given.push_back({&option_named(name), std::move(value), std::move(where)});
}

Arguments read_arguments(Command command, std::span<const std::string> arguments) {
  return Reader(command, arguments).read();
}

}  // namespace shardpipe::cli
