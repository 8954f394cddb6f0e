#include "plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <tuple>

#include "plan/sketch.h"
#include "program/simulate.h"

namespace shardpipe {
namespace {

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d * d <= number; ++d)
    if (number % d == 0) {
      found.push_back(d);
      if (d * d != number) found.push_back(number / d);
    }
  std::ranges::sort(found);
  return found;
}

bool is_power_of_two(int64_t number) { return (number & (number - 1)) == 0; }

// The fewest that make the schedule what it is, and twice as many until the blocks run out. Interleaved with one chunk
// a rank is 1F1B.
std::vector<int64_t> chunk_counts(const Generator& generator, int64_t pp, int64_t blocks) {
  std::vector<int64_t> counts;
  const bool one_is_another = generator.fewest_chunks == 1 && generator.most_chunks > 1;
  for (int64_t count = generator.fewest_chunks + (one_is_another ? 1 : 0);
       count <= generator.most_chunks && pp * count <= blocks; count *= 2)
    counts.push_back(count);
  return counts;
}

constexpr double sketch_error = 1.5;  // a sketch that is over the limit by more is not compiled
constexpr size_t round_size = 32;     // layouts that are compiled between two looks at whether any is left to try

struct Sketched {
  Layout layout;
  Sketch sketch;
};

std::vector<PricedLayout> price_all(const PlanRequest& request, std::span<const Sketched> layouts) {
  std::vector<PricedLayout> priced(layouts.size());
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;  // the first
  const auto work = [&] {
    for (size_t i = next++; i < layouts.size(); i = next++) try {
        priced[i] = price(request, simulate_step(request, layouts[i].layout));
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!error) error = std::current_exception();
      }
  };
  const unsigned threads = request.threads > 0 ? request.threads : std::max(1u, std::thread::hardware_concurrency());
  {
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
  return priced;
}

// Of layouts that take the same time, the one with less to understand and to go wrong.
bool is_better(const PricedLayout& a, const PricedLayout& b) {
  const auto order = [](const PricedLayout& p) {
    return std::tuple(p.step_seconds, p.layout.pp, p.layout.chunks_per_rank, p.layout.zero, p.peak_bytes);
  };
  return order(a) < order(b);
}

// Every combination that makes sense, whatever the question has fixed.
std::vector<Layout> all_layouts(const PlanRequest& request, bool offload) {
  const auto blocks = static_cast<int64_t>(request.model->blocks.size());
  std::vector<Layout> layouts;
  for (const int64_t pp : divisors(request.devices)) {
    const int64_t dp = request.devices / pp;
    if (pp > blocks || request.global_batch_size % dp != 0) continue;
    for (const int64_t micro_batch : divisors(request.global_batch_size / dp)) {
      if (!is_power_of_two(micro_batch)) continue;
      const int64_t micro_batches = request.global_batch_size / dp / micro_batch;
      if (micro_batches > UINT16_MAX) continue;
      for (const Generator& generator : generators()) {
        if (pp == 1 && generator.name != "1f1b") continue;  // nothing to schedule
        for (const int64_t chunks : chunk_counts(generator, pp, blocks))
          for (const int zero : dp == 1 ? std::vector{0} : std::vector{0, 1, 2, 3})
            for (const ReduceEvery cadence : {ReduceEvery::Step, ReduceEvery::Micro}) {
              // What is reduced every micro-batch accumulates shards; without shards there is nothing to gain by it,
              // and ZeRO 2 that reduces once a step is ZeRO 1.
              if (cadence == ReduceEvery::Micro ? zero < 2 || micro_batches == 1 : zero == 2) continue;
              for (const char* recompute : {"none", "selective", "full"})
                for (const char* kept :
                     offload ? std::vector{"optimizer", "optimizer,params", "optimizer,params,activations"}
                             : std::vector{"none"}) {
                  Layout layout{.pp = pp, .dp = dp, .zero = zero};
                  layout.schedule = generator.name;
                  layout.chunks_per_rank = chunks;
                  layout.micro_batch_size = micro_batch;
                  layout.global_batch_size = request.global_batch_size;
                  layout.reduce_every = cadence;
                  layout.precision = request.precision;
                  layout.recompute = recompute;
                  layout.offload = kept;
                  layouts.push_back(layout);
                  // HSDP: shards inside a node, copies across.
                  const auto in_node = static_cast<int64_t>(request.cluster.devices_in_node);
                  if (zero > 0 && dp > in_node && dp % in_node == 0 && is_power_of_two(in_node)) {
                    layout.replicate = dp / in_node;
                    layouts.push_back(layout);
                  }
                }
            }
      }
    }
  }
  return layouts;
}

// What two candidates differ in.
std::string key_of(const Layout& layout) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {}", layout.pp, layout.dp, layout.replicate, layout.zero_text(),
                     layout.schedule, layout.chunks_per_rank, layout.micro_batch_size,
                     static_cast<int>(layout.reduce_every), layout.recompute, layout.offload,
                     static_cast<int>(layout.reduce_dtype));
}

}  // namespace

std::vector<Layout> candidate_layouts(const PlanRequest& request, bool offload) {
  std::vector<Layout> layouts = all_layouts(request, offload);
  if (!request.fix) return layouts;
  std::vector<Layout> asked_for;
  std::set<std::string> different;
  for (Layout& layout : layouts) {
    if (!request.fix(layout) || layout.ranks() != request.devices) continue;
    if (!different.insert(key_of(layout)).second || !problems_of(layout, *request.model).empty()) continue;
    asked_for.push_back(layout);
  }
  return asked_for;
}

namespace {

// Without offload, then with it; one round where the question has fixed what is offloaded.
std::vector<std::vector<Layout>> rounds_of(const PlanRequest& request) {
  std::vector<std::vector<Layout>> rounds{candidate_layouts(request, false)};
  std::vector<Layout> offloading = candidate_layouts(request, true);
  if (offloading != rounds.front()) rounds.push_back(std::move(offloading));
  return rounds;
}

}  // namespace

std::vector<Layout> smallest_sketches(const PlanRequest& request, size_t count) {
  Sketcher sketcher(*request.model, request.cluster, request.optimizer_states_per_element);
  std::vector<Sketched> all;
  for (const std::vector<Layout>& round : rounds_of(request))
    for (const Layout& layout : round) all.push_back({layout, sketcher.sketch(layout)});
  std::ranges::stable_sort(all, {}, [](const Sketched& s) { return s.sketch.bytes; });
  std::vector<Layout> smallest;
  for (size_t i = 0; i < std::min(count, all.size()); ++i) smallest.push_back(all[i].layout);
  return smallest;
}

int64_t fewest_replicas(const PlanRequest& request) {
  const auto blocks = static_cast<int64_t>(request.model->blocks.size());
  int64_t longest = 1;
  for (const int64_t pp : divisors(request.devices))
    if (pp <= blocks) longest = std::max(longest, pp);
  return request.devices / longest;
}

SimulatedStep simulate_step(const PlanRequest& request, const Layout& layout) {
  SimulatedStep step{.shape = step_shape(*request.model, layout, request.optimizer_states_per_element)};
  step.program = compile(step.shape);
  step.timelines = simulate(step.program, costs_on(request.cluster, step.shape, step.program));
  return step;
}

PricedLayout price(const PlanRequest& request, const SimulatedStep& step) {
  const Layout& layout = step.shape.layout;
  const StepFigures figures = step_figures(step.program, step.timelines);
  PricedLayout priced{.layout = layout, .step_seconds = figures.step_seconds};
  const auto tokens = static_cast<double>(layout.global_batch_size * request.model->config.seq_len);
  priced.tokens_per_second = tokens / figures.step_seconds;
  priced.utilisation = model_flops_utilisation(request.cluster, step.shape, figures.step_seconds);
  const RankFigures& busiest = *std::ranges::max_element(figures.ranks, {}, &RankFigures::compute_seconds);
  priced.arithmetic = busiest.compute_seconds / figures.step_seconds;
  priced.exposed = busiest.exposed_seconds / figures.step_seconds;
  priced.exposed_store = busiest.exposed_store_seconds / figures.step_seconds;
  priced.idle = std::max(0.0, 1 - priced.arithmetic - priced.exposed - priced.exposed_store);
  const Program evaluation = compile(evaluation_shape(step.shape, step.program));
  for (size_t r = 0; r < step.program.by_pipeline_rank.size(); ++r)
    priced.peak_bytes = std::max(
        {priced.peak_bytes, step.program.by_pipeline_rank[r].arena_bytes, evaluation.by_pipeline_rank[r].arena_bytes});
  return priced;
}

PlanResult plan(const PlanRequest& request, const std::function<void(const PlanProgress&)>& progress) {
  PlanResult result;
  PlanProgress now;
  const auto tell = [&] {
    if (progress) progress(now);
  };
  for (const std::vector<Layout>& layouts : rounds_of(request)) {
    now.combinations += layouts.size();
    std::vector<Sketched> promising;
    Sketcher sketcher(*request.model, request.cluster, request.optimizer_states_per_element);
    for (const Layout& layout : layouts) {
      const Sketch sketch = sketcher.sketch(layout);
      if (sketch.bytes <= static_cast<double>(request.memory_limit) * sketch_error)
        promising.push_back({layout, sketch});
      if (++now.sketched % 64 == 0) tell();
    }
    std::ranges::stable_sort(promising, {}, [](const Sketched& s) { return s.sketch.seconds; });
    result.sketched_too_large += layouts.size() - promising.size();
    promising.resize(std::min(promising.size(), request.most_compiled));
    now.promising += promising.size();

    // In rounds of a fixed size, so that what is compiled does not depend on the number of threads.
    for (size_t begin = 0; begin < promising.size(); begin += round_size) {
      // A sketch leaves out what it cannot see, so that it is seldom above the truth.
      if (result.best.size() >= request.keep &&
          promising[begin].sketch.seconds > result.best[request.keep - 1].step_seconds)
        break;
      const size_t count = std::min(round_size, promising.size() - begin);
      for (PricedLayout& priced : price_all(request, std::span(promising).subspan(begin, count)))
        (priced.peak_bytes <= request.memory_limit ? result.best : result.too_large).push_back(std::move(priced));
      std::ranges::stable_sort(result.best, is_better);
      now.compiled += count;
      tell();
    }
    if (!result.best.empty()) break;
  }
  std::ranges::stable_sort(result.too_large, {}, &PricedLayout::peak_bytes);
  if (result.best.size() > request.keep) result.best.resize(request.keep);
  result.combinations = now.combinations;
  result.compiled = now.compiled;
  return result;
}

}  // namespace shardpipe
