// How long it takes to compile, check and simulate a step, and how that grows. N is the number of actions of all
// pipeline ranks, so that a fit of order N says that each action costs the same.
//
//   build/bench/bench_programs --benchmark_filter=Check
//   build/bench/bench_programs --benchmark_filter=Ranks     # 1,024 and 10,240 ranks, every schedule, beside their
//   limits
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include "program/check.h"
#include "program/compile.h"
#include "program/figures.h"
#include "program/simulate.h"

namespace shardpipe {
namespace {

// Llama 70B: 80 layers, which with ZeRO 3 and a reduction every micro-batch have the most actions.
Model bench_model() { return make_model(model_preset("llama-70b")); }

struct Size {
  int64_t pp, dp, micro_batches;
  std::string schedule = "1f1b";
};

StepShape shape_of(const Model& model, const Size& size) {
  Layout layout;
  layout.pp = size.pp;
  layout.dp = size.dp;
  layout.schedule = size.schedule;
  layout.chunks_per_rank = find_generator(size.schedule)->usual_chunks;
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

// 400 TFLOP/s and links of 50 and 100 GB/s: placeholders. The work does not depend on what is in them.
CostModel costs_of(const StepShape& shape) {
  return {.blocks = block_seconds_at(*shape.model, shape.micro_batch, 400e12),
          .message = {10e-6, 1 / 50e9},
          .collective = {20e-6, 1 / 100e9},
          .update = {2e-6, 1 / 3e12},
          .dp = static_cast<uint64_t>(shape.layout.dp)};
}

void report(benchmark::State& state, const Size& size, int64_t actions) {
  state.SetComplexityN(actions);
  state.counters["ranks"] = static_cast<double>(size.pp * size.dp);
  state.counters["actions"] = static_cast<double>(actions);
  state.counters["s/action"] = benchmark::Counter(
      static_cast<double>(actions), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

Size size_of(const benchmark::State& state) {
  // gpipe holds all activations at once, the most buffers that live
  return {state.range(0), state.range(1), state.range(2), state.range(3) != 0 ? "gpipe" : "1f1b"};
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
  const StepShape shape = shape_of(model, size_of(state));
  const Program program = compile(shape);
  const CostModel costs = costs_of(shape);
  for (auto _ : state) benchmark::DoNotOptimize(simulate(program, costs));
  report(state, size_of(state), actions_of(program));
}

void Figures(benchmark::State& state) {
  const Model model = bench_model();
  const StepShape shape = shape_of(model, size_of(state));
  const Program program = compile(shape);
  const std::vector<Timeline> timelines = simulate(program, costs_of(shape));
  for (auto _ : state) benchmark::DoNotOptimize(step_figures(program, timelines));
  report(state, size_of(state), actions_of(program));
}

double most_mebibytes_until_now() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// 1,024 ranks from the layout to a program in which check() finds nothing.
void CompileAndCheckRanks(benchmark::State& state, const std::string& schedule) {
  constexpr double limit_seconds = 1;
  const Size size{16, 64, 64, schedule};
  const Model model = bench_model();
  int64_t actions = 0;
  for (auto _ : state) actions = actions_of(compile(shape_of(model, size)));
  report(state, size, actions);
  state.counters["limit s"] = limit_seconds;
}

// 10,240 ranks from the layout to the figures of its step: compiled, checked, simulated.
void SimulateRanks(benchmark::State& state, const std::string& schedule) {
  constexpr double limit_seconds = 10, limit_mebibytes = 2048;
  const Size size{32, 320, 128, schedule};
  const Model model = bench_model();
  int64_t actions = 0;
  for (auto _ : state) {
    const StepShape shape = shape_of(model, size);
    const Program program = compile(shape);
    actions = actions_of(program);
    benchmark::DoNotOptimize(step_figures(program, simulate(program, costs_of(shape))));
  }
  report(state, size, actions);
  state.counters["limit s"] = limit_seconds;
  state.counters["MiB"] = most_mebibytes_until_now();  // of the process
  state.counters["limit MiB"] = limit_mebibytes;
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

void register_every_schedule() {
  for (const std::string& schedule : schedule_names()) {
    benchmark::RegisterBenchmark(fmt::format("CompileAndCheckRanks/1024/{}", schedule).c_str(), CompileAndCheckRanks,
                                 schedule)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(fmt::format("SimulateRanks/10240/{}", schedule).c_str(), SimulateRanks, schedule)
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace shardpipe

int main(int argc, char** argv) {
  shardpipe::register_every_schedule();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
