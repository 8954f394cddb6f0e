#include "cli/calibrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "calibrate/profile.h"
#include "report/terminal.h"

namespace shardpipe::cli {
namespace {

void show_progress(double share) { fmt::print(stderr, "\r{:3.0f} % of the calibration", 100 * share); }

Profile measure_and_write(const std::string& profile_file) {
  check_can_write_profile(profile_file);  // before a minute is spent
  const bool shows = is_terminal(STDERR_FILENO);
  const Profile profile = measure_profile(40, shows ? show_progress : std::function<void(double)>());
  if (shows) fmt::print(stderr, "\r\033[K");
  write_profile(profile, profile_file);
  fmt::print(stderr, "calibrated: {}, {} cores; written to {}\n", profile.processor, profile.cores, profile_file);
  return profile;
}

}  // namespace

Cluster this_machine(const std::string& profile_file, bool measures, int64_t devices) {
  const Profile profile = measures ? measure_and_write(profile_file) : read_profile(profile_file);
  const auto count = static_cast<uint64_t>(std::max<int64_t>(devices, 1));
  Cluster cluster{.device = profile.device, .devices_in_node = count, .between_name = "no network"};
  cluster.device.memory_bytes = profile.memory_bytes / count;
  cluster.between = cluster.device.link;  // never used: one node has them all
  return cluster;
}

}  // namespace shardpipe::cli
