// A Fetch stands before the arithmetic before that of its reader, so that it runs beside it: one block ahead, and two
// pieces of an optimizer step, so that one is read, one computed and one written at the same time. What is fetched
// early is held longer: this is all the staging memory that there is. (Rajbhandari et al., arXiv:2104.07857,
// section 6.2.)
#include <algorithm>

#include "program/compile.h"
#include "program/edit.h"

namespace shardpipe {

Program pass_prefetch(Program program, const StepShape&) {
  for (RankProgram& rank : program.by_pipeline_rank) {
    constexpr uint32_t nobody = UINT32_MAX;
    std::vector<uint32_t> fetched_by(rank.buffers.size(), nobody), written_at(rank.buffers.size(), 0);
    std::vector<uint32_t> arithmetic;  // blocks and optimizer steps so far
    std::vector<uint32_t> stands_before(rank.actions.size());
    for (uint32_t i = 0; i < rank.actions.size(); ++i) {
      const Action& action = rank.actions[i];
      stands_before[i] = i;
      if (action.kind == Kind::Offload) written_at[(rank.end_uses(action) - 1)->buffer] = i + 1;
      if (action.kind == Kind::Fetch) {
        fetched_by[(rank.end_uses(action) - 1)->buffer] = i;
        stands_before[i] = written_at[rank.begin_uses(action)->buffer];  // not before its source is there
      }
      if (action.kind == Kind::Fetch || action.kind == Kind::Offload) continue;
      const size_t ahead = std::min(arithmetic.size(), action.piece == none ? size_t{1} : size_t{2});
      const uint32_t earliest = ahead == 0 ? 0 : arithmetic[arithmetic.size() - ahead];
      for (const Use& use : uses_of(rank, action)) {
        uint32_t& fetch = fetched_by[use.buffer];
        if (fetch == nobody) continue;
        stands_before[fetch] = std::min(fetch, std::max(earliest, stands_before[fetch]));
        fetch = nobody;
      }
      if (is_compute(action.kind) || action.kind == Kind::OptimizerStep) arithmetic.push_back(i);
    }
    std::vector<uint32_t> order(rank.actions.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    // Before an action come the fetches that were moved there.
    std::ranges::stable_sort(order, {}, [&](uint32_t i) {
      return std::pair(stands_before[i], stands_before[i] == i && rank.actions[i].kind != Kind::Fetch);
    });
    RankEditor edit(rank);
    const std::vector<Action> actions = edit.take_actions();
    for (const uint32_t i : order) edit.append(actions[i]);
  }
  return program;
}

}  // namespace shardpipe
