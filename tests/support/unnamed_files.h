// The files of this process that have no name any more, as offload files have none: how tests reach them.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace shardpipe {

// Paths by which those that lay in `folder` can be opened, truncated, …
inline std::vector<std::filesystem::path> unnamed_files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.starts_with(folder.string() + "/") && target.ends_with(" (deleted)")) found.push_back(entry.path());
  }
  return found;
}

}  // namespace shardpipe
