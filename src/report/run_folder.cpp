#include "report/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace shardpipe {
namespace fs = std::filesystem;
namespace {

constexpr std::array run_files = {"config.toml", "metrics.jsonl", "summary.json"};
constexpr mode_t file_mode = 0666;  // less the umask

[[noreturn]] void refuse(const fs::path& path, std::string_view found) {
  throw InputError(fmt::format("--out {}: {}; allowed: a new folder, or one that can be written and holds no run",
                               path.string(), found));
}

[[noreturn]] void fail(const fs::path& path, const char* what, int error) {
  throw std::runtime_error(fmt::format("{}: {}: {}", path.string(), what, std::strerror(error)));
}

// Nothing at this path, and no link that points nowhere either.
bool is_free(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::not_found;
}

// Returns 0, or the errno of the write that failed.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

// Writes, syncs and closes; closes in any case. Returns 0, or the errno of the first call that failed.
int write_and_close(int descriptor, std::string_view text) {
  int error = write_all(descriptor, text);
  if (error == 0 && fsync(descriptor) != 0) error = errno;
  if (close(descriptor) != 0 && error == 0) error = errno;
  return error;
}

// Makes what was created in a folder last, its name too. A file system that cannot sync a folder says EINVAL.
int sync_folder(const fs::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  close(descriptor);
  return error;
}

// The folders that create_directories(path) will make, the deepest first.
std::vector<fs::path> missing_folders(const fs::path& path) {
  std::vector<fs::path> missing;
  for (fs::path folder = fs::absolute(path).lexically_normal(); is_free(folder); folder = folder.parent_path())
    missing.push_back(folder);
  return missing;
}

// Creates the folder and its configuration. Of two runs that start at once, one gets the folder.
void claim(const fs::path& path, std::string_view config) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) refuse(path, fmt::format("found that it cannot be created ({})", std::strerror(error.value())));
  const fs::path file = path / run_files[0];
  const int descriptor = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, file_mode);
  if (descriptor < 0)
    refuse(path, fmt::format("found that {} cannot be created ({})", run_files[0], std::strerror(errno)));
  if (const int write_error = write_and_close(descriptor, config)) {
    unlink(file.c_str());  // else the folder would hold a run that never was
    refuse(path, fmt::format("found that {} cannot be written ({})", run_files[0], std::strerror(write_error)));
  }
}

}  // namespace

void RunFolder::check(const fs::path& path) {
  if (path.empty()) refuse(path, "found an empty name");
  if (!is_free(path)) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);  // of what a link points to
    if (status.type() == fs::file_type::not_found) refuse(path, "found a link that points to nothing");
    if (error) refuse(path, fmt::format("found a path that cannot be read ({})", std::strerror(error.value())));
    if (!fs::is_directory(status)) refuse(path, "found a file");
    for (const char* name : run_files)
      if (!is_free(path / name)) refuse(path, fmt::format("found another run in it ({})", name));
    if (access(path.c_str(), W_OK | X_OK) != 0)
      refuse(path, fmt::format("found a folder that cannot be written ({})", std::strerror(errno)));
    return;
  }
  // The nearest parent that is there must take the folders that are missing.
  fs::path parent = fs::absolute(path).lexically_normal();
  while (is_free(parent) && parent.has_relative_path()) parent = parent.parent_path();
  std::error_code error;
  if (!fs::is_directory(parent, error)) refuse(path, fmt::format("found that {} is no folder", parent.string()));
  if (access(parent.c_str(), W_OK | X_OK) != 0)
    refuse(path, fmt::format("found that {} cannot be written ({})", parent.string(), std::strerror(errno)));
}

RunFolder::RunFolder(const fs::path& path, std::string_view config) : path_(path) {
  check(path);
  const std::vector<fs::path> created = missing_folders(path);
  try {
    claim(path, config);
  } catch (const InputError&) {
    for (const fs::path& folder : created) rmdir(folder.c_str());  // only where nothing else has come into it
    throw;
  }
}

RunFolder::~RunFolder() {
  if (metrics_ >= 0) close(metrics_);
}

void RunFolder::append_metrics(std::string_view line) {
  const fs::path file = path_ / "metrics.jsonl";
  if (metrics_ < 0) metrics_ = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, file_mode);
  if (metrics_ < 0) fail(file, "cannot be opened", errno);
  struct stat before {};
  if (fstat(metrics_, &before) != 0) fail(file, "cannot be read", errno);
  if (const int error = write_all(metrics_, fmt::format("{}\n", line))) {
    // The write is the error that is told, whether or not the cut succeeds.
    [[maybe_unused]] const int ignored = ftruncate(metrics_, before.st_size);
    fail(file, "cannot be written", error);
  }
}

void RunFolder::write_file_atomically(const std::string& name, std::string_view text) const {
  shardpipe::write_file_atomically(path_ / name, text);
}

void write_file_atomically(const fs::path& file, std::string_view text) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const std::string temporary = file.string() + ".tmp";
  const int descriptor = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, file_mode);
  if (descriptor < 0) fail(file, "cannot be created", errno);
  int error = write_and_close(descriptor, text);
  if (error == 0 && rename(temporary.c_str(), file.c_str()) != 0) error = errno;
  if (error != 0) {
    unlink(temporary.c_str());
    fail(file, "cannot be written", error);
  }
  if (const int sync_error = sync_folder(folder)) fail(file, "cannot be made to last", sync_error);
}

}  // namespace shardpipe
