#include "train/trace.h"

#include <algorithm>
#include <limits>

#include "program/text.h"
#include "report/perfetto.h"

namespace shardpipe {

std::string trace_of(const Step& step, const std::vector<Timeline>& timelines) {
  const auto dp = static_cast<size_t>(step.shape.layout.dp);
  double begin = std::numeric_limits<double>::infinity();
  for (const Timeline& timeline : timelines)
    for (const Span& span : timeline) begin = std::min(begin, span.begin_seconds);

  std::vector<TraceSpan> spans;
  for (size_t rank = 0; rank < timelines.size(); ++rank) {
    const RankProgram& program = step.training.by_pipeline_rank[rank / dp];
    for (size_t i = 0; i < program.actions.size(); ++i) {
      const Action& action = program.actions[i];
      TraceSpan span{.rank = static_cast<int>(rank),
                     .track_index = static_cast<int>(action.lane),
                     .track = to_string(action.lane),
                     .name = name_of(action),
                     .category = to_string(action.kind),
                     .begin_seconds = timelines[rank][i].begin_seconds - begin,
                     .end_seconds = timelines[rank][i].end_seconds - begin,
                     .flow_out = std::nullopt,
                     .flow_in = std::nullopt};
      // What is copied says more than that something is.
      if (action.kind == Kind::Fetch || action.kind == Kind::Offload)
        span.name +=
            " " + name_of(program.buffers[program.begin_uses(action)[action.kind == Kind::Fetch ? 1 : 0].buffer]);
      if (action.group != none) span.args["group"] = step.training.groups[action.group].name;
      // A message is its group, replica and place in the group's order: the same on both sides.
      const uint64_t message = (uint64_t{action.group} * dp + rank % dp) << 32 | action.sequence;
      if (action.kind == Kind::Send) span.flow_out = message;
      if (action.kind == Kind::Receive) span.flow_in = message;
      spans.push_back(std::move(span));
    }
  }
  return to_chrome_trace(spans, "shardpipe: one training step");
}

}  // namespace shardpipe
