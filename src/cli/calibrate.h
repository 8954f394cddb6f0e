// --calibrate and --profile of `shardpipe plan`: this machine as the devices of a cluster.
#pragma once
#include <string>

#include "plan/hardware.h"

namespace shardpipe::cli {

inline constexpr const char* usual_profile = "shardpipe-profile.json";

// `devices` ranks on this machine, from the profile file, which is measured and written first where `measures`; a
// progress line on a terminal. They share its memory evenly. InputError as read_profile and write_profile.
Cluster this_machine(const std::string& profile_file, bool measures, int64_t devices);

}  // namespace shardpipe::cli
