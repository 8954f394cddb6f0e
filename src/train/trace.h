// The measured step as a picture: a track a rank and lane, arrows from each send to its receive.
#pragma once
#include <string>
#include <vector>

#include "engine/machine.h"
#include "engine/rank.h"

namespace shardpipe {

// Chrome trace JSON, which Perfetto opens. timelines: of one training step, by world rank.
std::string trace_of(const Step& step, const std::vector<Timeline>& timelines);

}  // namespace shardpipe
