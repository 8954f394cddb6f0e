#include "calibrate/measure.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/local/local_world.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/optimizer.h"

namespace shardpipe {
namespace {

double least(const std::vector<double>& values) { return *std::ranges::min_element(values); }

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  return "unknown processor";
}

struct Shape {
  int64_t m, n, k;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};
constexpr Shape shapes[] = {{64, 64, 64},     {128, 128, 128}, {256, 256, 128}, {256, 256, 256},
                            {256, 1024, 256}, {512, 768, 768}, {512, 2048, 768}};
constexpr int64_t large_elements = int64_t{1} << 21;  // beyond what a core has of cache to itself

// What one rank works on.
struct Memory {
  std::vector<float> a = std::vector<float>(large_elements, 0.5F), b = a, c = a, d = a;
  std::vector<BFloat16> half_a = std::vector<BFloat16>(large_elements), half_b = half_a;
};

struct Case {
  double amount;  // of operations, or bytes, in one call
  std::function<void(Memory&, Communicator&)> call;
  int64_t repeats = 1;
  std::vector<double> seconds{};  // of one call, a round each: rank 0's
};

// How often a call is repeated, so that a clock's and a barrier's cost does not show.
int64_t repeats_of(double seconds) { return std::clamp<int64_t>(static_cast<int64_t>(5e-3 / seconds), 1, 1000); }

template <typename T>
Case product(const Shape& s, std::vector<T> Memory::*a, std::vector<T> Memory::*b) {
  return {s.flops(), [s, a, b](Memory& memory, Communicator&) {
            kernels::gemm(kernels::Transpose::No, kernels::Transpose::Yes, s.m, s.n, s.k, (memory.*a).data(), s.k,
                          (memory.*b).data(), s.k, memory.c.data(), s.n, false);
          }};
}

// To the neighbour and back, in pairs; one over has nobody. So a call is two messages one after the other.
Case ping(size_t bytes) {
  return {static_cast<double>(bytes), [bytes](Memory& memory, Communicator& comm) {
            const int peer = comm.rank() ^ 1;
            if (peer >= comm.size()) return;
            const auto part = std::as_writable_bytes(std::span(memory.a)).first(bytes);
            for (const bool sends : {comm.rank() % 2 == 0, comm.rank() % 2 != 0})
              sends ? comm.send(part, peer) : comm.receive(part, peer);
          }};
}

// Amount: what a ring sends from each rank.
Case all_reduce(size_t elements, int ranks) {
  return {2.0 * static_cast<double>(elements * sizeof(float)) * (ranks - 1) / ranks,
          [elements](Memory& memory, Communicator& comm) {
            comm.all_reduce(std::span<const float>(memory.a).first(elements), std::span(memory.b).first(elements),
                            false);
          }};
}

// A straight line through a call of next to nothing and a large one.
BytesCost line_of(const Case& small, const Case& large, double messages) {
  const double fixed = least(small.seconds) / messages, whole = least(large.seconds) / messages;
  return {fixed, std::max(whole - fixed, whole * 1e-3) / (large.amount - small.amount)};
}

double rate_of(const Case& one) { return one.amount / least(one.seconds); }

std::vector<Efficiency> curve_of(std::span<const Case> products, double peak) {
  std::vector<Efficiency> curve;
  for (const Case& one : products) curve.push_back({one.amount, rate_of(one) / peak});
  return curve;
}

double best_rate(std::span<const Case> products) {
  double best = 0;
  for (const Case& one : products) best = std::max(best, rate_of(one));
  return best;
}

}  // namespace

Profile measure_profile(double most_seconds, const std::function<void(double)>& progress) {
  Profile profile{.processor = processor_name(), .library = kernels::gemm_description()};
  profile.cores = std::max(1U, std::thread::hardware_concurrency());
  profile.memory_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const int ranks = std::max(2, static_cast<int>(profile.cores));  // a message needs two

  constexpr size_t products = std::size(shapes);
  std::vector<Case> cases;
  for (const Shape& shape : shapes) cases.push_back(product(shape, &Memory::a, &Memory::b));
  for (const Shape& shape : shapes) cases.push_back(product(shape, &Memory::half_a, &Memory::half_b));
  constexpr double large_bytes = large_elements * sizeof(float);
  const size_t activation = cases.size();
  cases.push_back({2 * large_bytes, [](Memory& memory, Communicator&) {
                     kernels::gelu_forward(memory.a.data(), memory.b.data(), large_elements);
                   }});
  const size_t update = cases.size();  // reads four arrays: what an action's bytes count
  cases.push_back({4 * large_bytes, [](Memory& memory, Communicator&) {
                     const kernels::AdamW adamw{.learning_rate = 0,
                                                .beta1 = 0.9,
                                                .beta2 = 0.95,
                                                .epsilon = 1e-8F,
                                                .weight_decay = 0,
                                                .bias_correction1 = 1,
                                                .bias_correction2 = 1,
                                                .gradient_scale = 1};
                     kernels::adamw_step(adamw, memory.a.data(), memory.b.data(), memory.c.data(), memory.d.data(),
                                         large_elements);
                   }});
  const size_t copy = cases.size();
  cases.push_back({large_bytes, [](Memory& memory, Communicator&) { std::ranges::copy(memory.a, memory.b.begin()); }});
  const size_t messages = cases.size();
  cases.push_back(ping(64));
  cases.push_back(ping(size_t{4} << 20));
  const size_t collectives = cases.size();
  cases.push_back(all_reduce(16, ranks));
  cases.push_back(all_reduce(large_elements, ranks));

  const double begin = now_seconds();
  constexpr size_t most_rounds = 40;
  bool goes_on = true;  // rank 0 writes it between two barriers
  LocalWorld world(ranks);
  std::vector<int> everyone(static_cast<size_t>(ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  run_ranks(world, [&](int rank) {
    const auto comm = world.join("calibration", everyone, rank);
    Memory memory;
    for (Case& one : cases) {  // prepared: products are compiled, pages touched; then how long a call takes, roughly
      one.call(memory, *comm);
      comm->barrier();
      const double start = now_seconds();
      one.call(memory, *comm);
      const double seconds = now_seconds() - start;
      comm->barrier();
      if (rank == 0) one.repeats = repeats_of(std::max(seconds, 1e-7));
      comm->barrier();
    }
    const double prepared = now_seconds();
    for (size_t round = 0; goes_on; ++round) {
      for (Case& one : cases) {
        comm->barrier();
        const double start = now_seconds();
        for (int64_t i = 0; i < one.repeats; ++i) one.call(memory, *comm);
        const double seconds = (now_seconds() - start) / static_cast<double>(one.repeats);
        if (rank == 0) one.seconds.push_back(seconds);
      }
      comm->barrier();
      if (rank == 0) {
        const double now = now_seconds(), a_round = (now - prepared) / static_cast<double>(round + 1);
        goes_on = round + 1 < most_rounds && now - begin + a_round < most_seconds;
        if (progress)
          progress(goes_on ? std::max(static_cast<double>(round + 1) / most_rounds, (now - begin) / most_seconds) : 1);
      }
      comm->barrier();
    }
  });

  Device& device = profile.device;
  const std::span<const Case> fp32 = std::span(cases).first(products),
                              half = std::span(cases).subspan(products, products);
  device.name = "cpu";
  device.peak_flops_fp32 = best_rate(fp32);
  device.peak_flops = best_rate(half);
  device.products_fp32 = curve_of(fp32, device.peak_flops_fp32);
  device.products = curve_of(half, device.peak_flops);
  device.memory_bytes_per_second = rate_of(cases[activation]);
  device.update = {0, 1 / rate_of(cases[update])};
  device.host = {0, 1 / rate_of(cases[copy])};
  device.link = line_of(cases[messages], cases[messages + 1], 2);
  device.collective = line_of(cases[collectives], cases[collectives + 1], 1);
  device.source = "measured on " + profile.processor + ", " + profile.library;
  return profile;
}

}  // namespace shardpipe
