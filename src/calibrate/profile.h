// The file of a Profile: JSON that a person can read, one unit in each key. The same profile gives the same text.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "calibrate/measure.h"

namespace shardpipe {

std::string to_json(const Profile&);

// InputError with every key that is missing, of another type or out of range: `name` (the file's), key, found, allowed.
Profile profile_of_json(std::string_view text, const std::string& name);

// InputError that says to run with --calibrate where there is no such file.
Profile read_profile(const std::filesystem::path&);

// The file has its old content or the new one, whole. InputError, file and reason, where it cannot be written.
void write_profile(const Profile&, const std::filesystem::path&);
// The same error, as far as one can tell without the profile: its temporary file is made and removed again.
void check_can_write_profile(const std::filesystem::path&);

}  // namespace shardpipe
