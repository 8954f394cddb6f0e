// How long it takes to compile, check and simulate a step, and how that grows. N is the number of actions of all
// pipeline ranks, so that a fit of order N says that each action costs the same.
//
//   build/bench/bench_programs --benchmark_filter=Check
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "program/check.h"
#include "program/compile.h"
#include "program/figures.h"
#include "program/simulate.h"

namespace shardpipe {
namespace {

// 78 layers, ZeRO 3, a reduction every micro-batch: the layout with the most actions.
Model bench_model() {
  ModelConfig config = model_preset("gpt2-tiny");
  config.layers = 78;
  return make_model(config);
}

struct Size {
  int64_t pp, dp, micro_batches;
  bool gpipe = false;  // all activations at once, the most buffers that live; else 1f1b
};

StepShape shape_of(const Model& model, const Size& size) {
  Layout layout;
  layout.pp = size.pp;
  layout.dp = size.dp;
  layout.schedule = size.gpipe ? "gpipe" : "1f1b";
  layout.zero = 3;
  layout.reduce_every = ReduceEvery::Micro;
  layout.global_batch_size = size.dp * size.micro_batches;
  return step_shape(model, layout, 2);
}

int64_t actions_of(const Program& program) {
  size_t actions = 0;
  for (const RankProgram& rank : program.by_pipeline_rank) actions += rank.actions.size();
  return static_cast<int64_t>(actions);
}

const CostModel& some_costs() {
  static const CostModel costs{
      .blocks = {{1e-3, 1e-3, 1e-3}}, .message = {1e-5, 1e-10}, .collective = {1e-5, 1e-10}, .update = {}, .dp = 64};
  return costs;
}

void report(benchmark::State& state, const Size& size, int64_t actions) {
  state.SetComplexityN(actions);
  state.counters["ranks"] = static_cast<double>(size.pp * size.dp);
  state.counters["actions"] = static_cast<double>(actions);
  state.counters["s/action"] = benchmark::Counter(
      static_cast<double>(actions), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

Size size_of(const benchmark::State& state) {
  return {state.range(0), state.range(1), state.range(2), state.range(3) != 0};
}

void Compile(benchmark::State& state) {  // all passes, without the check that compile() ends with
  const Model model = bench_model();
  const StepShape shape = shape_of(model, size_of(state));
  Program program;
  for (auto _ : state) {
    program = {};
    for (const CompilerPass& pass : passes()) program = pass.run(std::move(program), shape);
    benchmark::DoNotOptimize(program);
  }
  report(state, size_of(state), actions_of(program));
}

// The passes of an evaluation, which puts resident buffers where the training has them.
void CompileEvaluation(benchmark::State& state) {
  const Model model = bench_model();
  const StepShape training_shape = shape_of(model, size_of(state));
  const Program training = compile(training_shape);
  const StepShape shape = evaluation_shape(training_shape, training);
  Program program;
  for (auto _ : state) {
    program = {};
    for (const CompilerPass& pass : passes()) program = pass.run(std::move(program), shape);
    benchmark::DoNotOptimize(program);
  }
  report(state, size_of(state), actions_of(program));
}

void Check(benchmark::State& state) {
  const Model model = bench_model();
  const Program program = compile(shape_of(model, size_of(state)));
  for (auto _ : state) benchmark::DoNotOptimize(check(program));
  report(state, size_of(state), actions_of(program));
}

void Simulate(benchmark::State& state) {
  const Model model = bench_model();
  const Program program = compile(shape_of(model, size_of(state)));
  for (auto _ : state) benchmark::DoNotOptimize(simulate(program, some_costs()));
  report(state, size_of(state), actions_of(program));
}

void Figures(benchmark::State& state) {
  const Model model = bench_model();
  const Program program = compile(shape_of(model, size_of(state)));
  const std::vector<Timeline> timelines = simulate(program, some_costs());
  for (auto _ : state) benchmark::DoNotOptimize(step_figures(program, timelines));
  report(state, size_of(state), actions_of(program));
}

// From a layout to its figures.
void Everything(benchmark::State& state) {
  const Model model = bench_model();
  int64_t actions = 0;
  for (auto _ : state) {
    const Program program = compile(shape_of(model, size_of(state)));
    actions = actions_of(program);
    benchmark::DoNotOptimize(step_figures(program, simulate(program, some_costs())));
  }
  report(state, size_of(state), actions);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["process MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;  // the most until now: run it alone
}

// 1,024 ranks with more and more micro-batches: one fit for each schedule. Then deeper and deeper pipelines.
void growing(benchmark::internal::Benchmark* bench, int64_t gpipe) {
  bench->ArgNames({"pp", "dp", "m", "gpipe"})->Unit(benchmark::kMillisecond)->Complexity(benchmark::oN);
  for (const int64_t m : {16, 32, 64, 128, 256, 512}) bench->Args({16, 64, m, gpipe});
  for (const int64_t pp : {2, 4, 8, 32, 64}) bench->Args({pp, 64, 64, gpipe});
}
void growing_1f1b(benchmark::internal::Benchmark* bench) { growing(bench, 0); }
void growing_gpipe(benchmark::internal::Benchmark* bench) { growing(bench, 1); }
BENCHMARK(Compile)->Apply(growing_1f1b);
BENCHMARK(Compile)->Apply(growing_gpipe);
BENCHMARK(CompileEvaluation)->Apply(growing_1f1b);
BENCHMARK(CompileEvaluation)->Apply(growing_gpipe);
BENCHMARK(Check)->Apply(growing_1f1b);
BENCHMARK(Check)->Apply(growing_gpipe);
BENCHMARK(Simulate)->Apply(growing_1f1b);
BENCHMARK(Simulate)->Apply(growing_gpipe);
BENCHMARK(Figures)->Apply(growing_1f1b);
BENCHMARK(Figures)->Apply(growing_gpipe);
BENCHMARK(Everything)
    ->ArgNames({"pp", "dp", "m", "gpipe"})
    ->Unit(benchmark::kMillisecond)
    ->Args({16, 64, 64, 0})
    ->Args({32, 320, 128, 0});

}  // namespace
}  // namespace shardpipe

BENCHMARK_MAIN();
