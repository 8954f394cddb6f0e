// A schedule that a person wrote: what `--schedule file:PATH` of train, verify and show reads.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "schedules/schedule.h"

namespace shardpipe::cli {

// PATH of "file:PATH"; nullopt where the name is that of a generator, or of nothing.
std::optional<std::string> path_of_own_schedule(std::string_view name);

// The schedule in the file, in either format (schedules/text.h), complete and in an order that no rank waits in for
// ever. InputError with all that is wrong with it; `flag`, without dashes, is the one that named it.
Schedule read_own_schedule(const std::string& path, std::string_view flag);

}  // namespace shardpipe::cli
