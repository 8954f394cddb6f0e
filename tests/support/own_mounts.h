// Runs a part of a test where it can mount file systems that nobody else sees, or where permission bits stop it.
#pragma once
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <string>

namespace shardpipe {

// On a thread of its own, with `kind` ("tmpfs", "ramfs") mounted on `folder` for that thread alone; the mount ends with
// it. Returns why that cannot be had here, or nothing.
inline std::string with_mount(const char* kind, const std::filesystem::path& folder, unsigned long flags,
                              const char* options, const std::function<void()>& run) {
  std::string missing;
  std::async(std::launch::async, [&] {
    const auto fails = [&](const char* call, int result) {
      if (result != 0) missing = std::string(call) + ": " + std::strerror(errno);
      return result != 0;
    };
    if (fails("unshare", unshare(CLONE_NEWNS))) return;
    if (fails("mount /", mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr))) return;
    if (fails(kind, mount(kind, folder.c_str(), kind, flags, options))) return;
    run();
  }).get();
  return missing;
}

// On a thread of its own, whose files are those of a user without powers, even if the process is root's.
inline void bound_by_permission_bits(const std::function<void()>& run) {
  std::async(std::launch::async, [&] {
    setfsuid(65534);
    run();
  }).get();
}

}  // namespace shardpipe
