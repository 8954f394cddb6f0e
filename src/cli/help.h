// What --help prints, and the words that docs/command-line.md shares with it.
#pragma once
#include <string>

#include "cli/settings.h"

namespace shardpipe::cli {

std::string spelling_of(const Option&);  // "--pp N", "--tied, --untied"
std::string meaning_of(const Option&);   // its help, with the choices that its spelling does not show
std::string default_of(const Option&);   // in words: "1", "the preset's"

std::string overview();                // `shardpipe` and `shardpipe --help`
std::string help_of(Command command);  // `shardpipe train --help`

}  // namespace shardpipe::cli
