// What --help prints.
#pragma once
#include <string>

#include "cli/settings.h"

namespace shardpipe::cli {

std::string overview();                // `shardpipe` and `shardpipe --help`
std::string help_of(Command command);  // `shardpipe train --help`

}  // namespace shardpipe::cli
