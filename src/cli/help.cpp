#include "cli/help.h"

#include <algorithm>

#include "base/error.h"
#include "plan/hardware.h"
#include "schedules/schedule.h"

namespace shardpipe::cli {
namespace {

constexpr size_t column = 30, width = 80;  // a terminal of 80 columns

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

// Of a plan, what is not given is looked for.
std::string default_of(const Option& option, Command command) {
  if (command != Command::Plan || option.group != "Layout") return default_of(option);
  return option.name == "global-batch-size" ? "none: it must be given"
         : option.name == "precision"       ? "bf16"
         : option.name == "reduce-dtype"    ? default_of(option)
                                            : "what is fastest";
}

std::string entry_of(const Option& option, Command command) {
  return entry(spelling_of(option), fmt::format("{} (default {})", meaning_of(option), default_of(option, command)));
}

std::string known_devices() {
  std::string text = "\nDevices that are known\n";
  for (const std::string& name : device_presets()) {
    const Device device = device_preset(name);
    text += entry(name, fmt::format("{:.0f} TFLOP/s of 16 bits, {:.3g} of fp32; {:.0f} GB, {:.0f} GB/s of memory "
                                    "reached; usual network {}. {}",
                                    device.peak_flops / 1e12, device.peak_flops_fp32 / 1e12,
                                    static_cast<double>(device.memory_bytes) / 1e9,
                                    device.memory_bytes_per_second / 1e9, device.network, device.source));
  }
  return text;
}

std::string help_of_show() {
  std::string text =
      "shardpipe show [flags]: draw a pipeline schedule: who runs which pass of which\n"
      "micro-batch when, where ranks wait, and what they must hold meanwhile.\n"
      "A flag's value follows it, or stands after '=': --pp 2, --pp=2.\n";
  std::string group;
  for (const Option& option : show_options()) {
    if (option.group != group) text += fmt::format("\n{}\n", option.group);
    group = option.group;
    text += entry(spelling_of(option), fmt::format("{} (default {})", option.help, option.default_text));
  }
  text += entry("--help", "print this and stop") + "\nSchedules\n";
  for (const Generator& generator : generators()) {
    const std::string chunks = generator.fewest_chunks == generator.most_chunks
                                   ? fmt::format("{}", generator.fewest_chunks)
                                   : fmt::format("{} to {}", generator.fewest_chunks, generator.most_chunks);
    text += entry(std::string(generator.name),
                  fmt::format("{} ({} chunk{} a rank)", generator.summary, chunks, chunks == "1" ? "" : "s"));
  }
  return text +
         "\nExamples\n"
         "  shardpipe show --pp 4 --micro-batches 8\n"
         "  shardpipe show --pp 8 --micro-batches 32 --width 1000 | less -S\n"
         "  shardpipe show --compare gpipe,1f1b --costs 1,1.2,0.8,0.1\n"
         "  shardpipe show --schedule 1f1b --out 1f1b.svg\n"
         "  shardpipe show --schedule file:my.schedule\n";
}

std::string common_entries(Command command) {
  std::string text = "\nThis command\n";
  text += entry("--config FILE.toml",
                "settings from a flat TOML file: the flags' names without their dashes, '-' or '_' alike; flags win");
  if (command != Command::Plan) text += entry("--print-config", "print the whole configuration as TOML and stop");
  if (command == Command::Train)
    text += entry("--dry-run", "compile and check the program, print who holds what, and stop");
  if (command == Command::Matrix)
    text += entry("--train", "train every cell for --steps steps on tokens of the seed, and compare digests");
  return text + entry("--help", "print this and stop");
}

}  // namespace

std::string spelling_of(const Option& option) {
  const std::string value = placeholder(option);
  return fmt::format("--{}{}{}{}{}", option.name, value.empty() ? "" : " ", value,
                     option.opposite.empty() ? "" : ", --", option.opposite);
}

std::string meaning_of(const Option& option) {
  const bool hides_choices = option.kind == Kind::Choice && placeholder(option) == "NAME";
  const bool says_them = option.name == "model";  // and that a file may stand there
  return hides_choices && !says_them ? fmt::format("{}: {}", option.help, fmt::join(option.choices, ", "))
                                     : option.help;
}

std::string default_of(const Option& option) {
  if (!option.default_text.empty()) return option.default_text;
  const Value value = option.get(RunConfig{});
  if (const auto* yes = std::get_if<bool>(&value)) return *yes ? "yes" : "no";
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return to_toml(value);
}

std::string overview() {
  return "shardpipe trains GPT-2 and Llama models over pipeline stages and ZeRO shards;\n"
         "the bits do not depend on the layout.\n"
         "\n"
         "  shardpipe train …    train a model on text or tokens\n"
         "  shardpipe verify …   run a layout and one plain rank side by side and name the\n"
         "                       first difference\n"
         "  shardpipe matrix …   which layouts run: ZeRO stage × schedule × offload ×\n"
         "                       precision × recompute\n"
         "  shardpipe plan …     which layouts of a model on so many devices are fastest\n"
         "  shardpipe show …     draw a pipeline schedule, or several to compare\n"
         "\n"
         "Examples\n"
         "  shardpipe train --model gpt2-10m --data corpus.txt --pp 2 --dp 2 --zero 3 \\\n"
         "    --global-batch-size 16 --out runs/first\n"
         "  shardpipe train --model llama-tiny --pp 4 --schedule gpipe --dry-run\n"
         "  shardpipe verify --pp 2 --dp 2 --zero 3\n"
         "  shardpipe show --schedule 1f1b --pp 4 --micro-batches 8\n"
         "\n"
         "shardpipe train --help, and so on of the others, lists the flags; shardpipe\n"
         "--version prints the version. Exit code: 0 it is done, 2 what was asked for is\n"
         "wrong (each mistake a line on stderr), 1 anything else.\n";
}

std::string help_of(Command command) {
  if (command == Command::Show) return help_of_show();
  std::string text = command == Command::Train ? "shardpipe train --model NAME --data FILE [flags]: train a model.\n"
                     : command == Command::Plan
                         ? "shardpipe plan --model NAME --devices N --device-preset NAME\n"
                           "--global-batch-size B [flags]: rank the layouts that fit by the time of a step.\n"
                           "Each is compiled, its memory is exact, its time simulated. A flag of the layout\n"
                           "keeps to that value.\n"
                     : command == Command::Matrix
                         ? "shardpipe matrix [flags]: every cell of ZeRO stage × schedule × offload ×\n"
                           "precision × recompute: which run, and of those that do not why, and the nearest\n"
                           "that does. A flag of an axis leaves it that one value. Without --model:\n"
                           "gpt2-tiny. Without --pp and --dp: 2. Without --steps: 2. Exit code 1 when a cell\n"
                           "is refused or, with --train, has other bits than the rest of its precision and\n"
                           "cadence.\n"
                         : "shardpipe verify [flags]: run this layout and one plain rank side by side; name\n"
                           "the first tensor, step and micro-batch that differ, and by how much. Without\n"
                           "--model: gpt2-tiny. Without --steps: 3. Without --data: tokens drawn from the\n"
                           "seed. Exit code 1 when they differ.\n";
  text += "A flag's value follows it, or stands after '=': --pp 2, --pp=2.\n";
  std::string group;
  for (const Option* option : options_of(command)) {
    if (option->group != group) text += fmt::format("\n{}\n", option->group);
    group = option->group;
    text += entry_of(*option, command);
  }
  text += common_entries(command);
  return command == Command::Plan ? text + known_devices() : text;
}

}  // namespace shardpipe::cli
