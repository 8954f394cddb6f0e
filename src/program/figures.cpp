#include "program/figures.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"

namespace shardpipe {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Spans as sorted stretches that do not touch.
std::vector<Span> merged(std::vector<Span> spans) {
  std::ranges::sort(spans, {}, &Span::begin_seconds);
  std::vector<Span> stretches;
  for (const Span& span : spans)
    if (stretches.empty() || span.begin_seconds > stretches.back().end_seconds)
      stretches.push_back(span);
    else
      stretches.back().end_seconds = std::max(stretches.back().end_seconds, span.end_seconds);
  return stretches;
}

double total(const std::vector<Span>& stretches) {
  double seconds = 0;
  for (const Span& span : stretches) seconds += span.end_seconds - span.begin_seconds;
  return seconds;
}

// Of stretches, the time that lies in others.
double overlap(const std::vector<Span>& stretches, const std::vector<Span>& others) {
  double seconds = 0;
  size_t o = 0;
  for (const Span& span : stretches) {
    while (o < others.size() && others[o].end_seconds <= span.begin_seconds) ++o;
    for (size_t k = o; k < others.size() && others[k].begin_seconds < span.end_seconds; ++k)
      seconds +=
          std::min(span.end_seconds, others[k].end_seconds) - std::max(span.begin_seconds, others[k].begin_seconds);
  }
  return seconds;
}

// The most that is held at one time. What ends as another begins makes room for it.
class Peak {
 public:
  void add(Span life, int64_t amount) {
    if (life.end_seconds <= life.begin_seconds) return;
    changes_.emplace_back(life.begin_seconds, amount);
    changes_.emplace_back(life.end_seconds, -amount);
  }
  int64_t most() {
    std::ranges::sort(changes_);
    int64_t now = 0, most = 0;
    for (const auto& [time, change] : changes_) most = std::max(most, now += change);
    return most;
  }

 private:
  std::vector<std::pair<double, int64_t>> changes_;
};

void extend(Span& life, const Span& by) {
  life.begin_seconds = std::min(life.begin_seconds, by.begin_seconds);
  life.end_seconds = std::max(life.end_seconds, by.end_seconds);
}

uint64_t peak_bytes(const RankProgram& rank, const Timeline& timeline) {
  std::vector<Span> lives(rank.buffers.size(), {infinity, -infinity});
  for (size_t i = 0; i < rank.actions.size(); ++i)
    for (const Use& use : uses_of(rank, rank.actions[i])) extend(lives[use.buffer], timeline[i]);
  uint64_t resident = 0;
  Peak peak;
  for (size_t b = 0; b < rank.buffers.size(); ++b)
    if (rank.buffers[b].stored)
      continue;
    else if (rank.buffers[b].resident)
      resident += rank.buffers[b].bytes;
    else
      peak.add(lives[b], static_cast<int64_t>(rank.buffers[b].bytes));
  return resident + static_cast<uint64_t>(peak.most());
}

double peak_micro_batches(const RankProgram& rank, const Timeline& timeline) {
  std::map<std::pair<uint16_t, uint16_t>, Span> lives;  // of (block, micro-batch)
  std::map<uint16_t, bool> blocks;
  for (size_t i = 0; i < rank.actions.size(); ++i) {
    const Action& action = rank.actions[i];
    if (!is_compute(action.kind)) continue;
    extend(lives.try_emplace({action.index, action.micro_batch}, Span{infinity, -infinity}).first->second, timeline[i]);
    blocks[action.index] = true;
  }
  Peak peak;
  for (const auto& [run, life] : lives) peak.add(life, 1);
  return blocks.empty() ? 0 : static_cast<double>(peak.most()) / static_cast<double>(blocks.size());
}

}  // namespace

StepFigures step_figures(const Program& program, const std::vector<Timeline>& timelines) {
  check_invariant(timelines.size() == program.by_pipeline_rank.size(), "{} timelines of {} ranks", timelines.size(),
                  program.by_pipeline_rank.size());
  StepFigures figures;
  Span step{infinity, -infinity}, passes = step;
  double work = 0, longest = 0;
  for (size_t r = 0; r < timelines.size(); ++r) {
    const RankProgram& rank = program.by_pipeline_rank[r];
    check_invariant(timelines[r].size() == rank.actions.size(), "rank {}: {} spans of {} actions", r,
                    timelines[r].size(), rank.actions.size());
    RankFigures& own = figures.ranks.emplace_back();
    std::vector<Span> compute, communication, store;
    Span own_passes{infinity, -infinity};
    for (size_t i = 0; i < rank.actions.size(); ++i) {
      const Span& span = timelines[r][i];
      extend(step, span);
      const Kind kind = rank.actions[i].kind;
      const bool copies = kind == Kind::Fetch || kind == Kind::Offload;
      (copies ? store : rank.actions[i].group == none ? compute : communication).push_back(span);
      if (!is_compute(rank.actions[i].kind)) continue;
      own.compute_seconds += span.end_seconds - span.begin_seconds;
      extend(own_passes, span);
    }
    const std::vector<Span> talk = merged(std::move(communication));
    own.communication_seconds = total(talk);
    own.exposed_seconds = own.communication_seconds - overlap(talk, merged(compute));
    compute.insert(compute.end(), talk.begin(), talk.end());
    const std::vector<Span> copied = merged(std::move(store));
    own.exposed_store_seconds = total(copied) - overlap(copied, merged(std::move(compute)));
    own.peak_bytes = peak_bytes(rank, timelines[r]);
    own.peak_micro_batches = peak_micro_batches(rank, timelines[r]);
    work += own.compute_seconds;
    if (own_passes.begin_seconds > own_passes.end_seconds) continue;  // it runs no block
    own.first_seconds = own_passes.begin_seconds;
    own.last_seconds = own_passes.end_seconds;
    longest = std::max(longest, own.last_seconds - own.first_seconds);
    extend(passes, own_passes);
  }
  const auto ranks = static_cast<double>(timelines.size());
  if (step.end_seconds > step.begin_seconds) figures.step_seconds = step.end_seconds - step.begin_seconds;
  if (longest > 0) {
    figures.bubble = 1 - work / ranks / (passes.end_seconds - passes.begin_seconds);
    figures.bubble_of_own_span = 1 - work / ranks / longest;
  }
  return figures;
}

}  // namespace shardpipe
