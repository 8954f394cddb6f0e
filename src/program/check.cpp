#include "program/check.h"

#include "program/check_rules.h"

namespace shardpipe {

std::vector<Finding> check(const Program& program, const ChannelModel& channels) {
  std::vector<Finding> findings;
  check_structure(program, findings);
  if (!findings.empty()) return findings;  // the other rules follow indices
  check_meaning(program, findings);
  check_groups(program, findings);
  check_progress(program, channels, findings);
  for (uint16_t rank = 0; rank < program.by_pipeline_rank.size(); ++rank) check_order(program, rank, findings);
  for (uint16_t rank = 0; rank < program.by_pipeline_rank.size(); ++rank) check_store(program, rank, findings);
  check_completeness(program, findings);
  return findings;
}

}  // namespace shardpipe
