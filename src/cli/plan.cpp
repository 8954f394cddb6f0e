// shardpipe plan
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "cli/calibrate.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/plan_answer.h"
#include "cli/settings.h"
#include "report/terminal.h"
#include "train/memory_limit.h"
#include "train/trainer.h"

namespace shardpipe::cli {
namespace {

using Problems = std::vector<std::string>;

constexpr int64_t most_devices = 1'000'000, most_in_node = 1024, most_rows = 1000;
constexpr double usable_share_of_memory = 0.92;  // the rest: contexts, libraries, what a driver keeps

struct Question : PlanQuestion {
  int64_t explain = 0;  // a row, from 1; 0: none
  std::string emit;     // a framework; empty: none
  bool json = false;
};

const Setting* find(const Settings& settings, std::string_view name) {
  const auto found = std::ranges::find_if(settings.given, [&](const Setting& s) { return s.option->name == name; });
  return found == settings.given.end() ? nullptr : &*found;
}

bool is_plan_option(const Option* option) {
  return std::ranges::any_of(plan_options(), [&](const Option& own) { return &own == option; });
}

// Of the layout, what the question fixes; the rest is looked for.
bool is_fixed(const Option* option) {
  return option->group == "Layout" && option->name != "global-batch-size" && option->name != "precision";
}

// Settings of the run that is asked about: its model, batch, precision and optimizer.
Settings of_run(const Settings& all) {
  const auto is_other = [](const Option* option) { return is_plan_option(option) || is_fixed(option); };
  Settings run = all;
  std::erase_if(run.given, [&](const Setting& setting) { return is_other(setting.option); });
  std::erase_if(run.unreadable, is_other);
  return run;
}

// Values that candidates must have already; any other is put in their place, for there are too many to try.
bool is_enumerated(const Option& option) {
  constexpr std::array<std::string_view, 5> names{"pp", "dp", "zero", "schedule", "reduce-every"};
  return std::ranges::find(names, option.name) != names.end();
}

std::function<bool(Layout&)> fix_of(const Settings& from_file, const Settings& flags, Problems& problems) {
  std::vector<Setting> fixed;
  for (const Settings* settings : {&flags, &from_file})
    for (const Setting& setting : settings->given)
      if (is_fixed(setting.option) && (settings == &flags || find(flags, setting.option->name) == nullptr))
        fixed.push_back(setting);
  for (const Setting& setting : fixed) {
    if (setting.option->name == "zero" && !std::holds_alternative<int64_t>(setting.value))
      problems.push_back(
          fmt::format("{}: found a stage for each pipeline rank, allowed of plan: one for all", setting.where));
    if (setting.option->name == "schedule" && find_generator(std::get<std::string>(setting.value)) == nullptr)
      problems.push_back(fmt::format("{}: found '{}', allowed of plan: {}", setting.where,
                                     std::get<std::string>(setting.value), fmt::join(schedule_names(), ", ")));
  }
  if (fixed.empty()) return nullptr;
  return [fixed](Layout& layout) {
    RunConfig config;
    config.layout = layout;
    for (const Setting& setting : fixed) {
      const Value before = setting.option->get(config);
      setting.option->set(config, setting.value);
      if (is_enumerated(*setting.option) && setting.option->get(config) != before) return false;
    }
    layout = config.layout;
    return true;
  };
}

int64_t whole_number(const Settings& settings, std::string_view name, int64_t otherwise, int64_t most,
                     Problems& problems) {
  const Setting* setting = find(settings, name);
  if (setting == nullptr) return otherwise;
  const auto number = std::get<int64_t>(setting->value);
  if (number < 1 || number > most)
    problems.push_back(fmt::format("--{}: found {}, allowed: 1 to {}", name, number, most));
  return std::clamp<int64_t>(number, 1, most);
}

bool told(const Settings& settings, std::string_view name) {
  return find(settings, name) != nullptr ||
         std::ranges::any_of(settings.unreadable, [&](const Option* option) { return option->name == name; });
}

std::string text_or(const Settings& settings, std::string_view name, std::string otherwise) {
  const Setting* setting = find(settings, name);
  return setting == nullptr ? std::move(otherwise) : std::get<std::string>(setting->value);
}

// "300G"; 0 where nothing is said.
double count_of(const Settings& settings, std::string_view name, Problems& problems) {
  const std::string text = text_or(settings, name, "");
  const std::optional<uint64_t> count = text.empty() || text == "none" ? std::nullopt : bytes_in(text);
  if (!text.empty() && !count)
    problems.push_back(fmt::format("--{}: found '{}', allowed: a number, as 300G or 20000000", name, text));
  return static_cast<double>(count.value_or(0));
}

// "--model llama-8b --seq-len 4096": the preset and what differs from it, as a train command must repeat it.
std::string model_flags(const RunConfig& config) {
  RunConfig preset;
  preset.model = model_preset(config.model.name);
  std::string text = "--model " + config.model.name;
  for (const Option& option : options()) {
    if (!belongs(option, Command::Plan) || option.group != "Model" || option.name == "model") continue;
    const Value value = option.get(config);
    // A width brings its own --ffn along.
    const bool follows = option.name == "ffn" && config.model.hidden != preset.model.hidden;
    if (value == option.get(preset) && !follows) continue;
    text += option.kind == Kind::Switch ? fmt::format(" --{}", std::get<bool>(value) ? option.name : option.opposite)
                                        : fmt::format(" --{} {}", option.name, to_toml(value));
  }
  return text;
}

bool calibrates(const Settings& flags) { return find(flags, "calibrate") != nullptr; }

std::string preset_asked(const Settings& flags) {
  return text_or(flags, "device-preset", calibrates(flags) ? "cpu" : device_presets().front());
}

Cluster cluster_asked(const Settings& flags, Problems& problems) {
  const std::string preset = preset_asked(flags);
  if (calibrates(flags) && preset != "cpu")
    problems.push_back(fmt::format("--calibrate: found --device-preset {}, allowed: cpu, or none", preset));
  for (const char* name : {"links", "devices-per-node"})
    if (preset == "cpu" && told(flags, name))
      problems.push_back(
          fmt::format("--{}: found beside --device-preset cpu, which is one machine, allowed: no such flag", name));
  if (preset != "cpu" && told(flags, "profile"))
    problems.emplace_back(
        "--profile: found without a cpu to plan for, allowed: with --device-preset cpu or --calibrate");
  if (preset == "cpu") return {};  // read or measured when all else is right
  Cluster cluster = cluster_of(device_preset(preset));
  if (!told(flags, "device-preset"))
    problems.push_back(fmt::format("--device-preset: found none, allowed: {}, cpu", fmt::join(device_presets(), ", ")));
  cluster.devices_in_node = static_cast<uint64_t>(whole_number(flags, "devices-per-node", 8, most_in_node, problems));
  try {
    set_links(cluster, text_or(flags, "links", ""));
  } catch (const InputError& error) {
    problems.push_back(fmt::format("--links: {}", error.what()));
  }
  return cluster;
}

Question question_of(const Arguments& read, std::optional<Model>& model) {
  Question question;
  Problems problems;
  Settings from_file = read.config_file.empty() ? Settings{} : read_config_file(read.config_file);
  for (const Setting& setting : from_file.given)
    if (!belongs(*setting.option, Command::Plan))
      problems.push_back(fmt::format(
          "{}: found a key that plan does not go by, allowed: a model's, a layout's, optimizer", setting.where));
  const Settings& flags = read.settings;
  PlanRequest& request = question.request;
  request.devices = whole_number(flags, "devices", 1, most_devices, problems);
  if (!told(flags, "devices")) problems.push_back(fmt::format("--devices: found none, allowed: 1 to {}", most_devices));
  request.cluster = cluster_asked(flags, problems);
  request.keep = static_cast<size_t>(whole_number(flags, "top", 10, most_rows, problems));
  question.explain = whole_number(flags, "explain", 0, static_cast<int64_t>(request.keep), problems);
  question.emit = text_or(flags, "emit", "");
  question.json = find(flags, "json") != nullptr;
  if (question.json && !question.emit.empty())
    problems.emplace_back("--json: found beside --emit, allowed: one of them");
  question.tokens = count_of(flags, "tokens", problems);

  const std::string memory = text_or(flags, "memory", "");
  const std::optional<uint64_t> bytes = memory.empty() || memory == "none" ? std::nullopt : bytes_in(memory);
  if (!memory.empty() && !bytes)
    problems.push_back(fmt::format("--memory: found '{}', allowed: a number of bytes, as 70GB or 64GiB", memory));

  add_default(from_file, "precision", "bf16", "the defaults of plan");
  if (!told(flags, "global-batch-size") && !told(from_file, "global-batch-size"))
    problems.emplace_back("--global-batch-size: found none, allowed: sequences a step, over all devices");
  const Setting* name = find(told(flags, "model") ? flags : from_file, "model");
  if (name != nullptr && std::get<std::string>(name->value) == "synthetic")
    problems.push_back(
        fmt::format("{}: found synthetic, whose blocks compute nothing, allowed: any other", name->where));
  request.fix = fix_of(from_file, flags, problems);
  question.config = resolve(of_run(from_file), of_run(flags), problems);
  if (preset_asked(flags) == "cpu")
    request.cluster = this_machine(text_or(flags, "profile", usual_profile), calibrates(flags), request.devices);
  request.memory_limit = bytes.value_or(
      static_cast<uint64_t>(static_cast<double>(request.cluster.device.memory_bytes) * usable_share_of_memory));
  question.model_flags = model_flags(question.config);
  model = make_model(question.config.model);
  request.model = &*model;
  request.global_batch_size = question.config.layout.global_batch_size;
  request.precision = question.config.layout.precision;
  request.optimizer_states_per_element = optimizer_states_per_element(question.config.optimizer.optimizer);
  return question;
}

// One line, for a terminal.
void show_progress(const PlanProgress& now) {
  fmt::print(stderr, "\r\033[K{} of {} combinations sketched, {} of at most {} compiled", now.sketched,
             now.combinations, now.compiled, now.promising);
}

void print_settings(const Question& question, const PlanResult& result) {
  const size_t row = question.explain > 0 ? static_cast<size_t>(question.explain) : 1;
  const Emitted emitted = emit(question, result.best[row - 1].layout, question.emit);
  fmt::print("{}", emitted.settings);
  for (const std::string& note : emitted.notes) fmt::print(stderr, "note: {}\n", note);
}

}  // namespace

int plan_command(std::span<const std::string> arguments) {
  const Arguments read = read_arguments(Command::Plan, arguments);
  if (read.help) {
    fmt::print("{}", help_of(Command::Plan));
    return 0;
  }
  std::optional<Model> model;
  const Question question = question_of(read, model);
  const bool shows_progress = is_terminal(STDERR_FILENO);
  const PlanResult result =
      plan(question.request, shows_progress ? show_progress : std::function<void(const PlanProgress&)>());
  if (shows_progress) fmt::print(stderr, "\r\033[K");
  if (result.best.empty()) refuse(question, result);
  if (question.explain > static_cast<int64_t>(result.best.size()))
    throw InputError(fmt::format("--explain: found {}, allowed: 1 to {}, the rows that there are", question.explain,
                                 result.best.size()));
  if (!question.emit.empty()) {
    print_settings(question, result);
  } else if (question.json) {
    fmt::print("{}", json_of(question, result));
  } else {
    fmt::print("{}{}", table_of(question, result), advice_on(question, result));
    if (question.explain > 0)
      fmt::print("{}", explained(question, result.best[static_cast<size_t>(question.explain - 1)], question.explain,
                                 terminal_columns(STDOUT_FILENO), is_terminal(STDOUT_FILENO)));
    else
      fmt::print("--explain N shows a row in full, and the command that trains with it.\n");
  }
  return 0;
}

}  // namespace shardpipe::cli
