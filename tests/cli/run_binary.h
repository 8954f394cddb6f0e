// Runs the real binary in an empty folder of its own and keeps what it printed and what it left there.
#pragma once
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/temporary_folder.h"
#include "test_paths.h"

namespace shardpipe {

// Of a file that is not there, or not yet: nothing.
inline std::string read_file(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? content_of(path) : "";
}

// Every file below, with its content; folders end in '/'. Of a file that nobody may read, its size.
inline std::map<std::string, std::string> everything_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = std::filesystem::relative(entry.path(), folder).string();
    if (entry.is_directory())
      files[name + "/"] = "";
    else if (!entry.is_regular_file())
      files[name] = "no regular file";
    else
      files[name] = access(entry.path().c_str(), R_OK) == 0 ? content_of(entry.path())
                                                            : std::to_string(entry.file_size()) + " bytes";
  }
  return files;
}

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

// A process that runs beside the test. No shell stands between: arguments arrive byte for byte. `as` is a command that
// the binary and its arguments are given to.
class RunningBinary {
 public:
  RunningBinary(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                const std::vector<std::string>& as = {}) {
    const std::string output = printed_.path() / "output", error = printed_.path() / "error", where = folder;
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
    const int failure = posix_spawn(&process_, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failure != 0) throw std::runtime_error("cannot start " + words[0]);
  }
  ~RunningBinary() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  RunningBinary(const RunningBinary&) = delete;
  RunningBinary& operator=(const RunningBinary&) = delete;

  void send_signal(int signal) const { kill(process_, signal); }
  bool has_ended() const {  // without taking its status
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
  }

  Outcome wait() {
    int status = 0;
    if (waitpid(process_, &status, 0) != process_) throw std::runtime_error("waitpid");
    process_ = 0;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(printed_.path() / "output"),
            content_of(printed_.path() / "error")};
  }

 private:
  TemporaryFolder printed_;
  pid_t process_ = 0;
};

inline Outcome run_binary(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                          const std::vector<std::string>& as = {}) {
  return RunningBinary(arguments, folder, as).wait();
}

}  // namespace shardpipe
