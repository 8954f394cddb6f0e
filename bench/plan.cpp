// How long `shardpipe plan` takes for GPT-3's 175B parameters, by the number of devices: build/bench/bench_plan
// Counters: combinations that break no rule, layouts that were compiled, MiB that the process has had resident.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "plan/search.h"

namespace {

using namespace shardpipe;

void search(benchmark::State& state) {
  ModelConfig config = model_preset("gpt2-1.5b");
  config.layers = 96, config.hidden = 12288, config.heads = config.kv_heads = 96, config.ffn = 4 * config.hidden;
  config.seq_len = 2048, config.vocab_size = 51200;
  const Model model = make_model(config);
  PlanRequest request{.model = &model, .cluster = cluster_of(device_preset("a100-80g"))};
  request.devices = state.range(0);
  request.global_batch_size = std::max<int64_t>(1024, state.range(0));
  request.memory_limit = 73'600'000'000;
  PlanResult result;
  for (auto _ : state) result = plan(request);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["combinations"] = static_cast<double>(result.combinations);
  state.counters["compiled"] = static_cast<double>(result.compiled);
  state.counters["step_seconds"] = result.best.empty() ? 0 : result.best.front().step_seconds;
  state.counters["resident_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}
BENCHMARK(search)
    ->Name("devices")
    ->RangeMultiplier(4)
    ->Range(64, 65536)
    ->Arg(10000)
    ->Iterations(1)
    ->Unit(benchmark::kSecond)
    ->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
