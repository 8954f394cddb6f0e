// Settings → RunConfig: the preset first, then what was given, then the defaults that follow from it, then every rule.
#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "base/error.h"
#include "cli/own_schedule.h"
#include "cli/settings.h"
#include "schedules/schedule.h"

namespace shardpipe::cli {
namespace {

using Given = std::vector<Setting>;

const Setting* find(const Given& given, std::string_view name) {
  const auto found =
      std::ranges::find(given, name, [](const Setting& setting) { return std::string_view(setting.option->name); });
  return found == given.end() ? nullptr : &*found;
}

Given merge(const Given& from_file, const Given& from_flags) {
  Given merged = from_flags;
  for (const Setting& setting : from_file)
    if (!find(from_flags, setting.option->name)) merged.push_back(setting);
  return merged;
}

// Sizes that follow from others where they were not given.
void derive_model_sizes(const Given& given, ModelConfig& model, std::vector<std::string>& problems) {
  if (model.family == Family::Gpt2) {
    if (find(given, "heads") && !find(given, "kv-heads")) model.kv_heads = model.heads;
    int64_t ffn = 0;
    if (find(given, "hidden") && !find(given, "ffn") && !__builtin_mul_overflow(model.hidden, 4, &ffn)) model.ffn = ffn;
  } else if (find(given, "hidden") && !find(given, "ffn")) {
    problems.push_back(
        fmt::format("--ffn: found none beside --hidden {}, allowed: a whole number ({} itself has {}); "
                    "for llama it does not follow from --hidden",
                    model.hidden, model.name, model.ffn));
  }
}

// The file is read once, here; what is wrong with it is told beside all else.
void derive_own_schedule(Layout& layout, std::vector<std::string>& problems) {
  const std::optional<std::string> path = path_of_own_schedule(layout.schedule);
  if (!path) return;
  try {
    layout.own_schedule = read_own_schedule(*path, "schedule");
  } catch (const InputError& error) {
    problems.insert(problems.end(), error.problems().begin(), error.problems().end());
  }
}

// A product that does not fit has a factor that is out of range and is told by itself.
void derive_layout(const Given& given, Layout& layout) {
  if (const Generator* generator = find_generator(layout.schedule); generator != nullptr && !find(given, "chunks"))
    layout.chunks_per_rank = generator->usual_chunks;
  if (!find(given, "reduce-every")) layout.reduce_every = default_reduce_every(layout.highest_zero());
  if (find(given, "global-batch-size")) return;
  int64_t batch = 0;
  const bool overflows =
      __builtin_mul_overflow(layout.micro_batch_size, layout.dp, &batch) ||
      __builtin_mul_overflow(batch, layout.own_schedule ? layout.own_schedule->micro_batches : layout.pp, &batch);
  layout.global_batch_size = overflows ? 1 : batch;
}

// To 15 digits, which decimal numbers survive: 3e-05 of 3e-4, where 3e-4 / 10 is 2.9999999999999997e-05.
double tenth_of(double number) {
  const std::string text = fmt::format("{:.15g}", number / 10);
  double tenth = 0;
  std::from_chars(text.data(), text.data() + text.size(), tenth);
  return tenth;
}

void derive_min_lr(const Given& given, OptimizerConfig& optimizer) {
  constexpr double largest = std::numeric_limits<float>::max();
  if (!find(given, "min-lr"))
    optimizer.min_lr = std::clamp(tenth_of(optimizer.lr), 0.0, largest);  // an --lr out of range is told by itself
}

bool mentions(std::string_view line, std::string_view name) {
  const std::string flag = fmt::format("--{}", name);
  for (size_t at = line.find(flag); at != std::string_view::npos; at = line.find(flag, at + 1)) {
    const size_t end = at + flag.size();
    const bool whole = end == line.size() || !(line[end] == '-' || (line[end] >= 'a' && line[end] <= 'z') ||
                                               (line[end] >= '0' && line[end] <= '9'));
    if (whole) return true;
  }
  return false;
}

// A rule tells of flags; where a flag's value came from the file, or from others, say so.
std::string with_sources(std::string line, const Given& given) {
  std::vector<std::string> sources;
  for (const Setting& setting : given)
    if (!setting.where.starts_with("--") && mentions(line, setting.option->name))
      sources.push_back("set in " + setting.where);
  if (mentions(line, "global-batch-size") && !find(given, "global-batch-size"))
    sources.emplace_back("--global-batch-size is by default --micro-batch-size × --dp × --pp");
  return sources.empty() ? line : fmt::format("{} ({})", line, fmt::join(sources, "; "));
}

// The lines that are about what the person wrote: none about a value that nobody could read, and none about the default
// global batch where one of its factors has a line of its own.
std::vector<std::string> relevant(const std::vector<std::string>& lines, const Given& given,
                                  std::set<std::string> unknown) {
  const auto about_a_factor = [](const std::string& line) {
    return !mentions(line, "global-batch-size") &&
           (mentions(line, "pp") || mentions(line, "dp") || mentions(line, "micro-batch-size"));
  };
  if (!find(given, "global-batch-size") && std::ranges::any_of(lines, about_a_factor))
    unknown.insert("global-batch-size");
  std::vector<std::string> kept;
  for (const std::string& line : lines)
    if (std::ranges::none_of(unknown, [&](const std::string& name) { return mentions(line, name); }))
      kept.push_back(with_sources(line, given));
  return kept;
}

bool is_model_size(const Option& option) { return option.group == "Model" && option.name != "model"; }

}  // namespace

RunConfig resolve(const Settings& from_file, const Settings& from_flags, std::vector<std::string> further_problems) {
  std::vector<std::string> problems = from_file.problems;
  problems.insert(problems.end(), from_flags.problems.begin(), from_flags.problems.end());
  const Given given = merge(from_file.given, from_flags.given);

  // Flags whose value nobody knows: a rule that mentions one of them would be about a number that was not written.
  std::set<std::string> unknown;
  for (const Option* option : from_flags.unreadable) unknown.insert(option->name);
  for (const Option* option : from_file.unreadable)
    if (!find(from_flags.given, option->name)) unknown.insert(option->name);

  RunConfig config;
  const Setting* model = find(given, "model");
  const bool model_is_known = model && !unknown.contains("model");
  if (model_is_known) {
    config.model = model_preset(std::get<std::string>(model->value));
  } else {
    const auto& presets = model_presets();
    if (!unknown.contains("model"))
      problems.push_back(fmt::format("--model: found none, allowed: {}", fmt::join(presets, ", ")));
    config.model = model_preset(presets.front());
    unknown.insert("model");
    for (const Option& option : options())
      if (is_model_size(option) && !find(given, option.name)) unknown.insert(option.name);
  }
  for (const Setting& setting : given) setting.option->set(config, setting.value);
  if (model_is_known) derive_model_sizes(given, config.model, problems);
  derive_min_lr(given, config.optimizer);
  const size_t before = problems.size();
  if (!unknown.contains("schedule")) derive_own_schedule(config.layout, problems);
  if (problems.size() > before) unknown.insert("schedule");  // said; nothing more about it
  derive_layout(given, config.layout);
  if (const std::vector<double>& cost = config.block_cost; cost.size() >= 3) {
    const double recompute = config.layout.recompute == "full" ? (cost.size() > 3 ? cost[3] : cost[0]) : 0;
    config.layout.pass_costs = {cost[0], cost[1] + recompute, cost[2], 0};
  }

  problems.insert(problems.end(), further_problems.begin(), further_problems.end());
  const std::vector<std::string> of_rules = relevant(problems_of(config), given, unknown);
  problems.insert(problems.end(), of_rules.begin(), of_rules.end());
  if (!problems.empty()) throw InputError(problems);
  return config;
}

}  // namespace shardpipe::cli
