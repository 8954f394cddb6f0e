// Which layouts of a model on a number of devices take the least time: every combination that breaks no rule is
// sketched, the most promising are compiled, held to the memory limit by their exact arenas, and simulated.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/hardware.h"
#include "program/figures.h"
#include "program/timeline.h"

namespace shardpipe {

struct PlanRequest {
  const Model* model = nullptr;  // outlives the result
  Cluster cluster;
  int64_t devices = 1;
  int64_t global_batch_size = 1;
  uint64_t memory_limit = 0;  // of each rank's arena, bytes
  DType precision = DType::BFloat16;
  uint64_t optimizer_states_per_element = 2;
  // Makes a candidate what the question has fixed; false: it is none of those that are asked for. Empty: all are.
  std::function<bool(Layout&)> fix{};
  size_t keep = 10;  // layouts in the answer
  size_t most_compiled = 600;
  unsigned threads = 0;  // 0: as many as the machine has processors. The answer does not depend on it
};

// A layout as it would run.
struct PricedLayout {
  Layout layout;
  double step_seconds = 0, tokens_per_second = 0, utilisation = 0;  // utilisation: model FLOPs, of the devices' peak
  // Of the rank that computes longest, shares of the step: blocks forwards and backwards; communication, and copies
  // from and to the store, that nothing hides; and the rest, bubble and update.
  double arithmetic = 0, exposed = 0, exposed_store = 0, idle = 0;
  uint64_t peak_bytes = 0;  // the largest arena, of training and of an evaluation
};

struct PlanResult {
  std::vector<PricedLayout> best;       // by ascending time, those of one time by the simplest first
  std::vector<PricedLayout> too_large;  // compiled, but over the limit; by ascending arena
  size_t combinations = 0, sketched_too_large = 0, compiled = 0;
};

// How far a search has come. It ends when no layout that is left can be among the best: often long before the last.
struct PlanProgress {
  size_t combinations = 0, sketched = 0, compiled = 0, promising = 0;
};

// All layouts of the request that break no rule; offloads where `offload`.
std::vector<Layout> candidate_layouts(const PlanRequest&, bool offload);
// Those that seem to need the least memory, the smallest first; at most `count`.
std::vector<Layout> smallest_sketches(const PlanRequest&, size_t count);
// A global batch must be a multiple of this: the replicas of the longest pipeline.
int64_t fewest_replicas(const PlanRequest&);

// A layout's step: compiled, checked and simulated.
struct SimulatedStep {
  StepShape shape;
  Program program{};
  std::vector<Timeline> timelines{};  // by pipeline rank
};
SimulatedStep simulate_step(const PlanRequest&, const Layout&);
PricedLayout price(const PlanRequest&, const SimulatedStep&);

// Layouts that offload are looked at where none without fits. `progress` is called by the caller's thread.
PlanResult plan(const PlanRequest&, const std::function<void(const PlanProgress&)>& progress = nullptr);

}  // namespace shardpipe
