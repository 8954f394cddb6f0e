// docs/command-line.md and --help come from one table of options.
#include "cli/help.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/run_binary.h"
#include "test_paths.h"

namespace shardpipe::cli {
namespace {

std::string in_a_cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  return text;
}

// The tables of flags as docs/command-line.md has them, one under each heading of --help.
std::string tables_of_flags() {
  std::string text, group;
  for (const Option& option : options()) {
    if (option.group != group)
      text += fmt::format("{}### {}\n\n| Flag | Meaning | Default |\n|---|---|---|\n", group.empty() ? "" : "\n",
                          option.group);
    group = option.group;
    text += fmt::format("| `{}` | {}{} | {} |\n", in_a_cell(spelling_of(option)), in_a_cell(option.help),
                        option.of_verify ? "" : " (not of `verify`)", in_a_cell(default_of(option)));
  }
  return text;
}

TEST(CommandLinePage, HasTheFlagsThatThereAre) {
  const std::string page = content_of(TEST_DATA_DIR "/../docs/command-line.md");
  const std::string begin = "<!-- flags: begin -->\n\n", end = "\n<!-- flags: end -->";
  const size_t from = page.find(begin), to = page.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  EXPECT_EQ(page.substr(from + begin.size(), to - from - begin.size()), tables_of_flags())
      << "between the two marks of docs/command-line.md belongs:\n"
      << tables_of_flags();
}

// Those of plan alone, as docs/plan.md has them.
std::string table_of_plan_flags() {
  std::string text = "| Flag | Meaning | Default |\n|---|---|---|\n";
  for (const Option& option : plan_options())
    text += fmt::format("| `{}` | {} | {} |\n", in_a_cell(spelling_of(option)), in_a_cell(meaning_of(option)),
                        in_a_cell(option.default_text));
  return text;
}

TEST(PlanPage, HasTheFlagsThatThereAre) {
  const std::string page = content_of(TEST_DATA_DIR "/../docs/plan.md");
  const std::string begin = "<!-- flags: begin -->\n\n", end = "\n<!-- flags: end -->";
  const size_t from = page.find(begin), to = page.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  EXPECT_EQ(page.substr(from + begin.size(), to - from - begin.size()), table_of_plan_flags())
      << "between the two marks of docs/plan.md belongs:\n"
      << table_of_plan_flags();
}

TEST(Help, OfPlanNamesWhatItTakes) {
  const std::string text = help_of(Command::Plan);
  for (const Option* option : options_of(Command::Plan))
    EXPECT_THAT(text, testing::HasSubstr("\n  " + spelling_of(*option)));
  for (const char* absent :
       {"--print-config", "--steps", "--data", "--stages", "--out", "--memory-limit", "--block-cost"})
    EXPECT_THAT(text, testing::Not(testing::HasSubstr(fmt::format("\n  {}", absent))));
}

TEST(Help, NamesEveryFlagOnALineOfItsOwn) {
  for (const Command command : {Command::Train, Command::Verify, Command::Matrix})
    for (const Option& option : options()) {
      const bool listed = help_of(command).find("\n  " + spelling_of(option)) != std::string::npos;
      const bool of_matrix = (option.of_verify && option.group != "Data") || option.name == "memory-limit";
      EXPECT_EQ(listed, command == Command::Train || (command == Command::Matrix ? of_matrix : option.of_verify))
          << option.name;
    }
}

TEST(Help, FitsIntoEightyColumns) {
  for (const std::string& text : {overview(), help_of(Command::Train), help_of(Command::Verify),
                                  help_of(Command::Matrix), help_of(Command::Plan)}) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const auto columns =
          std::ranges::count_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
      EXPECT_LE(columns, 80) << line;
    }
  }
}

}  // namespace
}  // namespace shardpipe::cli
