// The arithmetic of a step, whole (an evaluation, which has no backward at all, keeps the rules that remain): every
// block runs forward and backward once for each micro-batch; a gradient adds up micro-batches in ascending order, is
// reduced once it holds all of them (or each by itself), tied ones are summed, exact sums rounded; the norm counts each
// parameter once; each parameter group is updated once wherever it lives, and whole again where it is kept whole.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "program/check_rules.h"
#include "program/text.h"

namespace shardpipe {
namespace {

// What a gradient accumulator of one rank holds.
struct GradientState {
  int micro_batches = 0;  // 0 … this - 1 have been added
  bool reduced = false;   // over the data-parallel group, or the shard group
  bool across = false;    // over the copies of the shard group, where there are any
  bool summed = false;    // over the two uses of a tied group
};

struct Counts {
  int micro_batches = 0;
  std::map<std::pair<uint16_t, uint16_t>, int> forwards, recomputes, inputs, weights;  // of (block, micro-batch)
  std::map<uint16_t, int> norms;                                                       // of a parameter group
  std::map<uint16_t, int> losses;                                                      // of a micro-batch
  std::set<uint16_t> tied;                                                             // parameter groups with two uses
  std::optional<bool> exact;    // whether gradients are summed exactly: all, or none
  std::optional<bool> rounded;  // whether what replicas reduce is rounded before: of all gradients, or of none
};

class RankRules {
 public:
  RankRules(const Program& program, uint16_t r, Counts& counts, std::vector<Finding>& findings)
      : program_(program), rank_(program.by_pipeline_rank[r]), r_(r), counts_(counts), findings_(findings) {
    for (const Group& group : program.groups)
      has_copies_ =
          has_copies_ || (group.replicas == Replicas::AcrossGroups && std::ranges::count(group.pipeline_ranks, r) > 0);
  }

  void run() {
    for (size_t i = 0; i < rank_.actions.size(); ++i) {
      i_ = i;
      const Action& action = rank_.actions[i];
      switch (action.kind) {
        case Kind::Forward:
          forward(action);
          break;
        case Kind::Recompute:
          recompute(action);
          break;
        case Kind::Backward:
          backward_input(action);
          backward_weight(action);
          break;
        case Kind::BackwardInput:
          backward_input(action);
          break;
        case Kind::BackwardWeight:
          backward_weight(action);
          break;
        case Kind::Reduce:
          reduce(action);
          break;
        case Kind::SumTied:
          sum_tied(action);
          break;
        case Kind::AddExact:
          add_exact(action);
          break;
        case Kind::Round:
          round(action);
          break;
        case Kind::GradientNorm:
          norm(action);
          break;
        case Kind::Clip:
          clip();
          break;
        case Kind::OptimizerStep:
          optimizer_step(action);
          break;
        case Kind::Unshard:
          stale_.erase(action.index);
          break;
        case Kind::Send:
        case Kind::Receive:
        case Kind::Fetch:
        case Kind::Offload:
          break;
      }
    }
    if (!clipped_) findings_.push_back({"the clip factor is made once", fmt::format("rank {}: it is not", r_)});
    for (const auto& [buffer, state] : gradients_)
      if (!updated_.contains(rank_.buffers[buffer].index))
        findings_.push_back({"each parameter group is updated once a step",
                             fmt::format("rank {}: g{} is not", r_, rank_.buffers[buffer].index)});
    for (const uint16_t group : stale_)
      findings_.push_back({"parameters that are kept whole are whole after the step",
                           fmt::format("rank {}: g{} is updated in shards and not gathered", r_, group)});
  }

 private:
  void finding(std::string_view rule) { findings_.push_back({std::string(rule), place(program_, r_, i_)}); }

  void forward(const Action& action) {
    if (++counts_.forwards[{action.index, action.micro_batch}] > 1)
      finding("each block runs forward once a micro-batch");
  }

  void recompute(const Action& action) {
    const std::pair run(action.index, action.micro_batch);
    if (!counts_.forwards.contains(run)) finding("a block is computed again after its forward");
    if (counts_.inputs.contains(run) || counts_.weights.contains(run))
      finding("a block is computed again before its backward");
    if (++counts_.recomputes[run] > 1) finding("a block is computed again at most once a micro-batch");
  }

  void backward_input(const Action& action) {
    if (!counts_.forwards.contains({action.index, action.micro_batch})) finding("a backward comes after its forward");
    if (++counts_.inputs[{action.index, action.micro_batch}] > 1)
      finding("each block runs backward once a micro-batch");
  }

  void backward_weight(const Action& action) {
    if (!counts_.forwards.contains({action.index, action.micro_batch})) finding("a backward comes after its forward");
    if (action.index > 0 && !counts_.inputs.contains({action.index, action.micro_batch}))
      finding("weight gradients come after the input gradient");
    if (++counts_.weights[{action.index, action.micro_batch}] > 1)
      finding("each block runs backward once a micro-batch");
    for (const Use& use : uses_of(rank_, action)) {
      const Buffer& buffer = rank_.buffers[use.buffer];
      if (buffer.role != Role::Gradient) continue;
      if (buffer.micro_batch == none) {
        in_one_form(false);
        add(use, action.micro_batch);
      } else if (buffer.micro_batch != action.micro_batch) {
        finding("a backward writes the gradient of its own micro-batch");
      }
    }
  }

  // A micro-batch joins an accumulator: the first overwrites it, the others come in ascending order.
  void add(const Use& use, uint16_t micro_batch) {
    GradientState& state = gradients_[use.buffer];
    if (state.reduced && state.micro_batches == counts_.micro_batches)
      finding("nothing is added to a gradient that is complete");
    if (micro_batch != state.micro_batches || (micro_batch == 0) != (use.access == Access::Write))
      finding("micro-batches are accumulated in ascending order, the first overwriting");
    ++state.micro_batches;
  }

  void in_one_form(bool exact) {
    if (!counts_.exact) counts_.exact = exact;
    if (counts_.exact != exact) finding("gradients are summed exactly, all or none");
  }
  static bool is_sum(const Buffer& buffer) {
    return (buffer.role == Role::Gradient || buffer.role == Role::ExactGradient) && buffer.micro_batch == none;
  }

  void add_exact(const Action& action) {
    in_one_form(true);
    if (slots_ != SlotsState::Empty) finding("gradients are added before the norm");
    uint16_t use_number = none;  // of the gradient, and of the sum
    for (const Use& use : uses_of(rank_, action)) {
      const Buffer& buffer = rank_.buffers[use.buffer];
      if (is_sum(buffer)) add(use, action.micro_batch);
      if (buffer.role == Role::Gradient && !added_.insert(use.buffer).second)
        finding("a gradient is added to an exact sum once");
      if (buffer.role == Role::Gradient || buffer.role == Role::ExactGradient) {
        if (use_number != none && use_number != buffer.copy) finding("each use of a group has an exact sum of its own");
        use_number = buffer.copy;
      }
      if (buffer.role != Role::Overflows) continue;
      if ((use.access == Access::Write) == counts_lost_)
        finding("what is out of range is counted over all of a step, the first count overwriting");
      counts_lost_ = true;
    }
  }

  void round(const Action& action) {
    in_one_form(true);
    same_extent(action);
    for (const Use& use : uses_of(rank_, action)) {
      const Buffer& buffer = rank_.buffers[use.buffer];
      if (buffer.role == Role::ExactGradient) summed(use.buffer);
      if (buffer.role == Role::Gradient && !rounded_.insert(use.buffer).second) finding("an exact sum is rounded once");
    }
  }

  void reduce(const Action& action) {
    if (action.index == none) {
      if (slots_ != SlotsState::Written) finding("the slots are summed once, after the norm");
      slots_ = SlotsState::Summed;
      return;
    }
    same_extent(action);
    in_one_form(is_exact(rank_, action));
    const bool across = program_.groups[action.group].replicas == Replicas::AcrossGroups;
    if (has_copies_ && program_.groups[action.group].replicas == Replicas::All)
      finding("shard groups are summed each before all of them");
    const bool rounded = reduce_uses(rank_, action).wire != UINT32_MAX;
    if (!across && !counts_.rounded) counts_.rounded = rounded;
    if (rounded != (!across && counts_.rounded.value_or(false)))
      finding("gradients are reduced in one type, sums of shard groups in fp32");
    for (const Use& use : uses_of(rank_, action)) {
      const Buffer& buffer = rank_.buffers[use.buffer];
      if (!is_sum(buffer)) continue;
      GradientState& state = gradients_[use.buffer];
      if (action.micro_batch == none) {
        if (state.micro_batches != counts_.micro_batches) finding("a gradient is reduced when it is complete");
        if (across ? state.across : state.reduced) finding("a gradient is reduced once");
        if (across && !state.reduced) finding("shard groups are summed each before all of them");
      } else {
        add(use, action.micro_batch);
      }
      state.reduced = true;
      state.across = state.across || across;
    }
  }

  void sum_tied(const Action& action) {
    same_extent(action);
    in_one_form(is_exact(rank_, action));
    for (const Use& use : uses_of(rank_, action)) {
      if (!complete(use.buffer)) finding("tied gradients are summed when they are complete and reduced");
      if (use.access == Access::Read) continue;
      if (gradients_[use.buffer].summed) finding("tied gradients are summed once");
      gradients_[use.buffer].summed = true;
    }
  }

  // Everything after the reduction works on what the reduction left whole.
  void same_extent(const Action& action) {
    if (!extent_known_) extent_ = action.extent;
    extent_known_ = true;
    if (extent_ != action.extent) finding("reduction, norm and update agree on what of a gradient they use");
  }

  void clip() {
    if (slots_ != SlotsState::Summed) finding("the clip factor comes after the sum of all slots");
    if (clipped_) finding("the clip factor is made once");
    clipped_ = true;
  }

  void norm(const Action& action) {
    same_extent(action);
    if (slots_ != SlotsState::Empty) finding("each rank takes its norm once, before the slots are summed");
    slots_ = SlotsState::Written;
    bool reads_lost = false;
    for (const Use& use : uses_of(rank_, action)) {
      const Buffer& buffer = rank_.buffers[use.buffer];
      reads_lost = reads_lost || buffer.role == Role::Overflows;
      if (buffer.role == Role::Loss) ++counts_.losses[buffer.micro_batch];
      if (buffer.role != Role::Gradient) continue;
      ++counts_.norms[buffer.index];
      ready(use.buffer);
    }
    if (reads_lost != counts_lost_) finding("the norm reads how much was out of range");
  }

  void optimizer_step(const Action& action) {
    same_extent(action);
    if (!clipped_) finding("an update comes after the clip factor");
    int& pieces = updated_.try_emplace(action.index, 0).first->second;
    if (action.piece == none ? pieces != 0 : pieces + 1 != action.piece)
      finding("each parameter group is updated once a step, piece by piece");
    ++pieces;
    for (const Use& use : uses_of(rank_, action)) {
      const Buffer& buffer = rank_.buffers[use.buffer];
      if (buffer.role == Role::Gradient) ready(use.buffer);
      if (buffer.role == Role::Parameters && action.extent == Extent::Owned) stale_.insert(action.index);
    }
  }

  bool complete(uint32_t buffer) {
    const GradientState& state = gradients_[buffer];
    return state.reduced && (state.across || !has_copies_) && state.micro_batches == counts_.micro_batches;
  }
  void ready(uint32_t buffer) {
    if (!counts_.exact.value_or(false))
      summed(buffer);
    else if (!rounded_.contains(buffer))
      finding("the optimizer reads exact sums that are rounded");
  }
  void summed(uint32_t buffer) {
    if (!complete(buffer)) finding("the optimizer reads gradients that are complete and reduced");
    if (counts_.tied.contains(rank_.buffers[buffer].index) && !gradients_[buffer].summed)
      finding("the optimizer reads tied gradients that are summed");
  }

  const Program& program_;
  const RankProgram& rank_;
  uint16_t r_;
  size_t i_ = 0;
  Counts& counts_;
  std::vector<Finding>& findings_;
  std::map<uint32_t, GradientState> gradients_;
  std::map<uint16_t, int> updated_;  // how many pieces of a parameter group; 1 where it has none
  std::set<uint16_t> stale_;
  std::set<uint32_t> added_, rounded_;  // gradients: of micro-batches to exact sums, from them
  enum class SlotsState { Empty, Written, Summed } slots_ = SlotsState::Empty;
  bool clipped_ = false, extent_known_ = false, has_copies_ = false, counts_lost_ = false;
  Extent extent_ = Extent::Whole;
};

Counts expectations(const Program& program) {
  Counts counts;
  for (const RankProgram& rank : program.by_pipeline_rank) {
    for (const Action& action : rank.actions)
      if (action.kind == Kind::Forward) counts.micro_batches = std::max(counts.micro_batches, action.micro_batch + 1);
    for (const Buffer& buffer : rank.buffers)
      if (buffer.role == Role::Gradient && buffer.copy == 1) counts.tied.insert(buffer.index);
  }
  return counts;
}

}  // namespace

void check_completeness(const Program& program, std::vector<Finding>& findings) {
  Counts counts = expectations(program);
  std::set<uint16_t> groups;
  for (uint16_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    RankRules(program, r, counts, findings).run();
    for (const Buffer& buffer : program.by_pipeline_rank[r].buffers)
      if (buffer.role == Role::Gradient) groups.insert(buffer.index);
  }
  // A block or micro-batch that some rank runs must be run through and through; numbers that nobody runs are gaps.
  std::set<uint16_t> blocks, micro_batches;
  for (const auto* runs : {&counts.forwards, &counts.recomputes, &counts.inputs, &counts.weights})
    for (const auto& [run, times] : *runs) {
      blocks.insert(run.first);
      micro_batches.insert(run.second);
    }
  for (const auto& [what, numbers] : {std::pair("block", &blocks), std::pair("micro-batch", &micro_batches)})
    if (!numbers->empty() && *numbers->rbegin() + size_t{1} != numbers->size())
      findings.push_back({"blocks and micro-batches are numbered from 0 without a gap",
                          fmt::format("no rank runs some {} below {}", what, *numbers->rbegin())});
  for (const uint16_t b : blocks)
    for (const uint16_t m : micro_batches) {
      if (!counts.forwards.contains({b, m}))
        findings.push_back({"each block runs forward once a micro-batch", fmt::format("no rank does F b{} m{}", b, m)});
      if (counts.inputs.empty() && counts.weights.empty()) continue;  // an evaluation
      if (b > 0 && !counts.inputs.contains({b, m}))
        findings.push_back(
            {"each block runs backward once a micro-batch", fmt::format("no rank does B or I of b{} m{}", b, m)});
      if (!counts.weights.contains({b, m}))
        findings.push_back(
            {"each block runs backward once a micro-batch", fmt::format("no rank does B or W of b{} m{}", b, m)});
    }
  for (const uint16_t group : groups)
    if (counts.norms[group] != 1)
      findings.push_back({"the norm counts each parameter once",
                          fmt::format("g{} is counted {} times by all ranks together", group, counts.norms[group])});
  for (const uint16_t m : micro_batches)
    if (counts.losses[m] != 1)
      findings.push_back({"the loss counts each micro-batch once",
                          fmt::format("m{} is counted {} times by all ranks together", m, counts.losses[m])});
}

}  // namespace shardpipe
