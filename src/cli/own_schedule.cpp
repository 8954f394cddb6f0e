#include "cli/own_schedule.h"

#include <fmt/format.h>

#include "cli/text_file.h"
#include "schedules/text.h"

namespace shardpipe::cli {
namespace {

constexpr std::string_view prefix = "file:";

}  // namespace

std::optional<std::string> path_of_own_schedule(std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  return std::string(name.substr(prefix.size()));
}

Schedule read_own_schedule(const std::string& path, std::string_view flag) {
  constexpr size_t most_mebibytes = 64;
  return read_schedule(read_text_file(path, fmt::format("--{} {}{}", flag, prefix, path),
                                      "a readable file with a schedule", most_mebibytes),
                       path);
}

}  // namespace shardpipe::cli
