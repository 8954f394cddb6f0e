// Files that a person names and that are read whole.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace shardpipe::cli {

// InputError that names it as_given, "--config run.toml: found a folder, allowed: a readable TOML file", where the path
// leads to no regular file, to more than most_mib, or cannot be read. An empty file is read.
std::string read_text_file(const std::string& path, std::string_view as_given, std::string_view allowed,
                           uintmax_t most_mib);

}  // namespace shardpipe::cli
