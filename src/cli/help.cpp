#include "cli/help.h"

#include <algorithm>

#include "base/error.h"

namespace shardpipe::cli {
namespace {

constexpr size_t column = 36, width = 112;

// The flag at the left, its text wrapped at the right.
std::string entry(const std::string& flag, const std::string& text) {
  std::string result = "  " + flag;
  size_t at = result.size();
  const auto new_line = [&] {
    result += "\n" + std::string(column, ' ');
    at = column;
  };
  if (at + 2 > column)
    new_line();
  else
    result += std::string(column - at, ' '), at = column;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const size_t length = end - begin;
    if (at > column && at + 1 + length > width) new_line();
    if (at > column) result += ' ', ++at;
    result += text.substr(begin, length);
    at += length;
    begin = end + 1;
  }
  return result + "\n";
}

std::string default_of(const Option& option) {
  if (!option.default_text.empty()) return option.default_text;
  const Value value = option.get(RunConfig{});
  if (const auto* yes = std::get_if<bool>(&value)) return *yes ? "yes" : "no";
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return to_toml(value);
}

std::string entry_of(const Option& option) {
  const std::string value = placeholder(option);
  std::string flag = fmt::format("--{}{}{}", option.name, value.empty() ? "" : " ", value);
  if (!option.opposite.empty()) flag += fmt::format(", --{}", option.opposite);
  std::string text = option.help;
  if (value == "NAME" && option.name != "model") text += fmt::format(": {}", fmt::join(option.choices, ", "));
  return entry(flag, fmt::format("{} (default {})", text, default_of(option)));
}

std::string common_entries(Command command) {
  std::string text = "\nThis command\n";
  text += entry("--config FILE.toml",
                "settings from a flat TOML file: the flags' names without their dashes, '-' or '_' alike; flags win");
  text += entry("--print-config", "print the whole configuration as TOML and stop");
  if (command == Command::Train)
    text += entry("--dry-run", "compile and check the program, print who holds what, and stop");
  return text + entry("--help", "print this and stop");
}

}  // namespace

std::string overview() {
  return "shardpipe trains GPT-2 and Llama models over pipeline stages and ZeRO shards; the bits do not depend on the "
         "layout.\n"
         "\n"
         "  shardpipe train  …   train a model on text or tokens\n"
         "  shardpipe verify …   run a layout and one plain rank side by side and name the first difference\n"
         "\n"
         "Examples\n"
         "  shardpipe train --model gpt2-10m --data corpus.txt --pp 2 --dp 2 --zero 3 --global-batch-size 16 --out "
         "runs/first\n"
         "  shardpipe train --model llama-tiny --data corpus.txt --pp 4 --schedule gpipe --dry-run\n"
         "  shardpipe verify --pp 2 --dp 2 --zero 3\n"
         "\n"
         "`shardpipe train --help` lists the flags; `shardpipe --version` prints the version.\n";
}

std::string help_of(Command command) {
  const bool train = command == Command::Train;
  std::string text = train ? "shardpipe train --model NAME --data FILE [flags]: train a model.\n"
                           : "shardpipe verify [flags]: run this layout and one plain rank side by side; name the "
                             "first tensor, step and\n"
                             "micro-batch that differ, and by how much. Without --model: gpt2-tiny. Without --steps: "
                             "3. Without --data: tokens\n"
                             "drawn from the seed.\n";
  text += "A flag's value follows it, or stands after '=': --pp 2, --pp=2.\n";
  std::string group;
  for (const Option& option : options()) {
    if (!train && !option.of_verify) continue;
    if (option.group != group) text += fmt::format("\n{}\n", option.group);
    group = option.group;
    text += entry_of(option);
  }
  return text + common_entries(command);
}

}  // namespace shardpipe::cli
