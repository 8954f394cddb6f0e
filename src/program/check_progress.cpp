#include "program/check_rules.h"
#include "program/progress.h"

namespace shardpipe {

void check_progress(const Program& program, const ChannelModel& channels, std::vector<Finding>& findings) {
  const std::string waits = progress(program, channels).waits_for_ever;
  if (!waits.empty()) findings.push_back({"nothing waits for ever", waits});
}

}  // namespace shardpipe
