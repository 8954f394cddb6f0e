// Reads a TOML file into settings. A file is flat: tables would give a setting a second name.
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/nearest_name.h"
#include "cli/settings.h"
#include "cli/text_file.h"

namespace shardpipe::cli {
namespace {

std::string type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return fmt::format("the string {}", to_toml(node.as_string()->get()));
    case toml::node_type::integer:
      return fmt::format("the whole number {}", node.as_integer()->get());
    case toml::node_type::floating_point:
      return fmt::format("the number {}", node.as_floating_point()->get());
    case toml::node_type::boolean:
      return node.as_boolean()->get() ? "true" : "false";
    default:
      return "a date or time";
  }
}

// What a key of this kind may hold, in TOML's words.
std::string allowed_in_toml(const Option& option) {
  switch (option.kind) {
    case Kind::Switch:
      return "true, false";
    case Kind::YesNos:
      return "true, false, or an array of them";
    case Kind::Reals:
      return "an array of finite numbers";
    case Kind::Stages:
      return "an array of whole numbers, or \"auto\"";
    case Kind::Files:
      return "an array of strings, or one string";
    case Kind::Choice: {
      std::vector<std::string> quoted;
      for (const std::string& choice : option.choices) quoted.push_back(to_toml(choice));
      return fmt::format("{}", fmt::join(quoted, ", "));
    }
    case Kind::Text:
      return "a string";
    case Kind::Integers:
      return "a whole number, or an array of them";
    case Kind::Integer:
    case Kind::Real:
      return allowed(option);
  }
  throw InvariantError("a kind of option without a type in TOML");
}

// Every element of an array as a T; nullopt where one has another type.
template <typename T>
std::optional<Value> list_of(const toml::array& array) {
  std::vector<T> list;
  for (const toml::node& element : array) {
    if (!element.is<T>()) return std::nullopt;
    list.push_back(*element.value_exact<T>());
  }
  return list;
}

// A whole number is a number too: weight-decay = 0.
std::optional<double> real_of(const toml::node& node) {
  if (const auto* value = node.as_integer()) return static_cast<double>(value->get());
  if (const auto* value = node.as_floating_point(); value && std::isfinite(value->get())) return value->get();
  return std::nullopt;
}

std::optional<Value> reals_of(const toml::array& array) {
  std::vector<double> list;
  for (const toml::node& element : array) {
    const std::optional<double> real = real_of(element);
    if (!real) return std::nullopt;
    list.push_back(*real);
  }
  return list;
}

// nullopt: another type than the option has.
std::optional<Value> convert(const Option& option, const toml::node& node) {
  switch (option.kind) {
    case Kind::Switch:
      if (const auto* value = node.as_boolean()) return value->get();
      break;
    case Kind::YesNos:
      if (const auto* value = node.as_boolean()) return value->get();
      if (const auto* array = node.as_array(); array && !array->empty()) return list_of<bool>(*array);
      break;
    case Kind::Integer:
      if (const auto* value = node.as_integer()) return value->get();
      break;
    case Kind::Integers:
      if (const auto* value = node.as_integer()) return value->get();
      if (const auto* array = node.as_array(); array && !array->empty()) return list_of<int64_t>(*array);
      break;
    case Kind::Real:
      if (const std::optional<double> real = real_of(node)) return *real;
      break;
    case Kind::Reals:
      if (const auto* array = node.as_array()) return reals_of(*array);
      break;
    case Kind::Choice:
      if (const auto* value = node.as_string(); value && std::ranges::count(option.choices, value->get()))
        return value->get();
      break;
    case Kind::Text:
      if (const auto* value = node.as_string()) return value->get();
      break;
    case Kind::Stages:
      if (const auto* value = node.as_string(); value && value->get() == "auto") return std::vector<int64_t>{};
      if (const auto* array = node.as_array(); array && !array->empty()) return list_of<int64_t>(*array);
      break;
    case Kind::Files:
      if (const auto* value = node.as_string()) return std::vector<std::string>{value->get()};
      if (const auto* array = node.as_array()) return list_of<std::string>(*array);
      break;
  }
  return std::nullopt;
}

// Nothing is known of what the file says: whatever the flags do not say is unknown.
void mark_all_unreadable(Settings& settings) {
  for (const Option& option : options()) settings.unreadable.push_back(&option);
}

std::string suggestion(const Option& option, const toml::node& node) {
  const auto* text = node.as_string();
  return option.kind == Kind::Choice && text ? did_you_mean(text->get(), option.choices) : "";
}

// A table is unknown, and so is everything in it: each key is told, so that nobody believes that one of them counts.
void refuse_table(const toml::table& table, const std::string& name, const std::string& path, Settings& settings) {
  settings.problems.push_back(fmt::format("{}:{}: {}: found a table, allowed: keys at the top level only", path,
                                          table.source().begin.line, name));
  for (const auto& [key, node] : table) {
    const std::string inner = fmt::format("{}.{}", name, key.str());
    if (const toml::table* nested = node.as_table())
      refuse_table(*nested, inner, path, settings);
    else
      settings.problems.push_back(fmt::format("{}:{}: {}: found an unknown key, allowed: keys at the top level only",
                                              path, key.source().begin.line, inner));
  }
}

void take_key(const toml::key& key, const toml::node& node, const std::string& path, Settings& settings) {
  std::string name(key.str());
  const std::string where = fmt::format("{}:{}: {}", path, key.source().begin.line, name);
  std::ranges::replace(name, '_', '-');
  const auto option = std::ranges::find(options(), name, &Option::name);
  if (option == options().end()) {
    if (const toml::table* table = node.as_table()) return refuse_table(*table, std::string(key.str()), path, settings);
    std::vector<std::string> names;
    for (const Option& known : options()) names.push_back(known.name);
    settings.problems.push_back(
        fmt::format("{}: found an unknown key, allowed: the flags of train without their dashes{}", where,
                    did_you_mean(name, names)));
    return;
  }
  if (const auto before = std::ranges::find(settings.given, &*option, &Setting::option);
      before != settings.given.end()) {
    settings.problems.push_back(fmt::format("{}: found twice, allowed: once; the other is {}", where, before->where));
    return;
  }
  if (std::optional<Value> value = convert(*option, node)) {
    settings.given.push_back({&*option, std::move(*value), where});
    return;
  }
  settings.problems.push_back(fmt::format("{}: found {}, allowed: {}{}", where, type_name(node),
                                          allowed_in_toml(*option), suggestion(*option, node)));
  settings.unreadable.push_back(&*option);
}

}  // namespace

Settings read_config_text(std::string_view text, const std::string& path) {
  Settings settings;
  try {
    const toml::table table = toml::parse(text, path);
    std::vector<std::pair<toml::key, const toml::node*>>
        entries;  // in the order of the file: a table is sorted by name
    for (const auto& [key, node] : table) entries.emplace_back(key, &node);
    std::ranges::stable_sort(entries, {}, [](const auto& entry) { return entry.first.source().begin.line; });
    for (const auto& [key, node] : entries) take_key(key, *node, path, settings);
  } catch (const toml::parse_error& error) {
    settings.problems.push_back(fmt::format("{}:{}: found text that is not TOML ({}), allowed: TOML, each key once",
                                            path, error.source().begin.line, error.description()));
    mark_all_unreadable(settings);
  }
  return settings;
}

Settings read_config_file(const std::string& path) {
  try {
    return read_config_text(read_text_file(path, "--config " + path, "a readable TOML file", 1), path);
  } catch (const InputError& error) {
    Settings settings;
    settings.problems = error.problems();
    mark_all_unreadable(settings);
    return settings;
  }
}

}  // namespace shardpipe::cli
