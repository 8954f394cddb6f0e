// Runs the real binary in an empty folder of its own and keeps what it printed and what it left there.
#pragma once
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace shardpipe {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Made in the constructor, removed in the destructor.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "shardpipe-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
  }

  // Every file below, with its content; folders end in '/'.
  std::map<std::string, std::string> content() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
      const std::string name = std::filesystem::relative(entry.path(), path_).string();
      if (entry.is_directory())
        files[name + "/"] = "";
      else
        files[name] = entry.is_regular_file() ? read_file(entry.path()) : "";
    }
    return files;
  }

 private:
  std::filesystem::path path_;
};

struct Outcome {
  int exit_code = -1;  // -1: ended by a signal
  std::string standard_output, standard_error;

  std::vector<std::string> error_lines() const {
    std::vector<std::string> lines;
    std::istringstream text(standard_error);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
};

// Whom a file's permission bits stop: root reads and writes everything, unless it gives those two powers up.
inline std::vector<std::string> bound_by_permissions() {
  if (geteuid() != 0) return {};
  const std::string without = "-dac_override,-dac_read_search";
  return {"/usr/bin/setpriv", "--inh-caps=" + without, "--bounding-set=" + without};
}

// No shell stands between: arguments arrive byte for byte. `as` is a command that the binary and its arguments are
// given to.
inline Outcome run_binary(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                          const std::vector<std::string>& as = {}) {
  const TemporaryFolder printed;
  const std::string output = printed.path() / "output", error = printed.path() / "error", where = folder;
  std::vector<std::string> words = as;
  words.emplace_back(SHARDPIPE_BINARY);
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, where.c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_CREAT | O_WRONLY, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, error.c_str(), O_CREAT | O_WRONLY, 0600);
  pid_t child = 0;
  const int failure = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) throw std::runtime_error("cannot start " + words[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid");
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(output), read_file(error)};
}

}  // namespace shardpipe
