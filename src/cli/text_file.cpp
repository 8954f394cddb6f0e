#include "cli/text_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace shardpipe::cli {

std::string read_text_file(const std::string& path, std::string_view as_given, std::string_view allowed,
                           uintmax_t most_mib) {
  const auto refuse = [&](std::string_view found) {
    throw InputError(fmt::format("{}: found {}, allowed: {}", as_given, found, allowed));
  };
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) refuse("no such file");
  if (!std::filesystem::is_regular_file(status))
    refuse(std::filesystem::is_directory(status) ? "a folder" : "no regular file");
  if (std::filesystem::file_size(path, error) > most_mib << 20) refuse(fmt::format("more than {} MiB", most_mib));
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || (file.peek() != std::ifstream::traits_type::eof() && !(text << file.rdbuf())))
    refuse("a file that cannot be read");
  return text.str();
}

}  // namespace shardpipe::cli
