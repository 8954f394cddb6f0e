// Which known name was probably meant: for flags, keys, schedules and subcommands that do not exist.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace shardpipe {

// The known name with the fewest edits (insert, delete, replace, swap neighbours) from `name`, when they are few for
// its length; else the first known name that contains it; else empty.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

// " (did you mean 'x'?)", or nothing where no known name is near. `prefix` stands before the name: "--".
std::string did_you_mean(std::string_view name, std::span<const std::string> known, std::string_view prefix = "");

}  // namespace shardpipe
