#include "base/error.h"

namespace shardpipe {

InputError::InputError(std::string problem) : std::runtime_error(problem), problems_{std::move(problem)} {}

InputError::InputError(std::vector<std::string> problems)
    : std::runtime_error(fmt::format("{}", fmt::join(problems, "\n"))), problems_(std::move(problems)) {}

}  // namespace shardpipe
