// A step as it ran, or as a simulator says that it would, as the same kind of picture that a schedule is drawn as.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "program/program.h"
#include "program/timeline.h"
#include "report/picture.h"

namespace shardpipe {

enum class OtherLanes : uint8_t { Hidden, Shown };

// timelines: by pipeline rank, of one replica; times are shown in milliseconds. first_block: of each chunk, as
// StepShape has it. The blocks of a cell are one box from the begin of the first to the end of the last; what the
// compute lane does beside passes is a box of other work, what other lanes do stands in thin rows below, if shown.
// InvariantError where a timeline is not as long as its program.
Picture picture_of(const Program& program, std::span<const uint16_t> first_block, std::span<const Timeline> timelines,
                   std::string_view name, OtherLanes lanes = OtherLanes::Hidden);

}  // namespace shardpipe
