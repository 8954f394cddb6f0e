#include "machine_limits.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machine_limits.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shardpipe::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve independent chains: more than latency × units of any current core.
double run_multiply_adds(int64_t repeats, float* sink) {
  const hn::ScalableTag<float> d;
  constexpr int chains = 12;
  hn::Vec<decltype(d)> sums[chains];
  for (int c = 0; c < chains; ++c) sums[c] = hn::Set(d, static_cast<float>(c));
  const auto factor = hn::Set(d, 0.5f), term = hn::Set(d, 1.0f);
  for (int64_t i = 0; i < repeats; ++i) {
    for (int c = 0; c < chains; ++c) sums[c] = hn::MulAdd(sums[c], factor, term);
  }
  for (int c = 1; c < chains; ++c) sums[0] = hn::Add(sums[0], sums[c]);
  *sink = hn::GetLane(hn::SumOfLanes(d, sums[0]));
  return 2.0 * chains * static_cast<double>(hn::Lanes(d)) * static_cast<double>(repeats);
}

const char* instructions() { return hwy::TargetName(HWY_TARGET); }

}  // namespace shardpipe::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardpipe::bench {

HWY_EXPORT(run_multiply_adds);
HWY_EXPORT(instructions);

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double peak_flops_per_second() {
  double best = 0;
  volatile float kept = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    float sink = 0;
    const double start = thread_seconds();
    const double operations = HWY_DYNAMIC_DISPATCH(run_multiply_adds)(1'000'000, &sink);
    best = std::max(best, operations / (thread_seconds() - start));
    kept = sink;
  }
  (void)kept;
  return best;
}

double copy_bytes_per_second(uint64_t footprint_bytes) {
  const size_t bytes = std::max<size_t>(footprint_bytes / 2, 64);
  const std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes);
  const uint64_t copies = std::max<uint64_t>(1, 20'000'000 / bytes);
  double best = 0;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double start = thread_seconds();
    for (uint64_t i = 0; i < copies; ++i) {
      std::memcpy(to.data(), from.data(), bytes);
      asm volatile("" : : "r"(to.data()) : "memory");  // the copy is wanted, though nobody reads it
    }
    best = std::max(best, 2.0 * static_cast<double>(bytes * copies) / (thread_seconds() - start));
  }
  return best;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, name = "unknown processor", family, model;
  while (std::getline(info, line) && !line.empty()) {
    const auto value = line.substr(std::min(line.find(':') + 2, line.size()));
    if (line.starts_with("model name")) name = value;
    if (line.starts_with("cpu family")) family = value;
    if (line.starts_with("model\t")) model = value;
  }
  return name + " (family " + family + ", model " + model + ")";
}

std::string vector_instructions() { return HWY_DYNAMIC_DISPATCH(instructions)(); }

}  // namespace shardpipe::bench
#endif
