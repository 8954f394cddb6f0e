// The folder that a run writes into (--out): config.toml, metrics.jsonl, summary.json and what else is asked for. A
// folder holds one run, so nothing of an earlier one is ever overwritten.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace shardpipe {

// The file has its old content or the new one, whole and on disk, whenever the process or the machine stops.
// std::runtime_error with file and reason.
void write_file_atomically(const std::filesystem::path& file, std::string_view text);

// Used by one thread at a time.
class RunFolder {
 public:
  // Throws the InputError that the constructor would throw, as far as one can tell without creating anything: the path
  // is a file, holds a run, cannot be created or may not be written into.
  static void check(const std::filesystem::path& path);

  // Creates the folder, and its parents, and config.toml in it. InputError: as `check`; that file cannot be written.
  // What was created is removed again then.
  RunFolder(const std::filesystem::path& path, std::string_view config);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // Adds the line and a line break to metrics.jsonl; when it returns, other programs can read it. std::runtime_error
  // with file and reason when it cannot be written whole; the part that was written is cut off again, so that every
  // line of the file stays valid.
  void append_metrics(std::string_view line);

  // As below, of a file in the folder.
  void write_file_atomically(const std::string& name, std::string_view text) const;

 private:
  std::filesystem::path path_;
  int metrics_ = -1;  // file descriptor, open after the first line
};

}  // namespace shardpipe
