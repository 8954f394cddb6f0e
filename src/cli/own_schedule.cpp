#include "cli/own_schedule.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
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
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  std::error_code ignored;
  if (!path.empty() && !std::filesystem::is_directory(path, ignored)) text << file.rdbuf();
  if (!file || path.empty() || text.str().empty())
    throw InputError(fmt::format("--{} {}{}: cannot read a schedule from '{}', allowed: the name of a file with one",
                                 flag, prefix, path, path));
  return read_schedule(text.str(), path);
}

}  // namespace shardpipe::cli
