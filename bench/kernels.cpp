// The kernels at the shapes of a small GPT-2: each case ends in the share of its limit that it reaches, `of_fma_peak`
// or `of_copy` (a memcpy of the same bytes, within the same footprint), both measured by this run. What is bought at a
// price (sums that do not depend on an order, dropout) also tells the price: how many times the time and the bytes of
// the fp32 kernel that it replaces or stands beside.
//
//   build/bench/bench_kernels --benchmark_filter=attention
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/exact_sum.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/layernorm.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/rmsnorm.h"
#include "kernels/cpu/rotary.h"
#include "machine_limits.h"

using namespace shardpipe;
using namespace shardpipe::kernels;

namespace {

struct Shape {
  int64_t tokens = 256, hidden = 320, heads = 5, kv_heads = 5, ffn = 1280, vocabulary = 256;
};

std::vector<float> floats(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / static_cast<float>(1 << 24) - 0.5f;
  }
  return values;
}

template <HalfElement T>
std::vector<T> halves(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  convert(floats(count).data(), values.data(), count);
  return values;
}

// CPU seconds of one run.
template <class Run>
double loop(benchmark::State& state, Run&& run) {
  run();
  const double start = bench::thread_seconds();
  for (auto _ : state) {
    run();
    benchmark::ClobberMemory();
  }
  return (bench::thread_seconds() - start) / static_cast<double>(state.iterations());
}

void compute_bound(benchmark::State& state, double flops, double seconds) {
  static const double peak = bench::peak_flops_per_second();
  state.counters["of_fma_peak"] = flops / seconds / peak;
}

// `moved` floats are read or written by one call, all of them different
void memory_bound(benchmark::State& state, int64_t moved, double seconds) {
  const double bytes = 4.0 * static_cast<double>(moved);
  state.counters["of_copy"] = bytes / seconds / bench::copy_bytes_per_second(static_cast<uint64_t>(bytes));
}

void linear(const std::string& layer, Shape s, int64_t in, int64_t out) {
  const std::string shape =
      "/" + layer + "/tokens:" + std::to_string(s.tokens) + "/in:" + std::to_string(in) + "/out:" + std::to_string(out);
  const double flops = 2.0 * static_cast<double>(s.tokens * in * out);
  const auto x = floats(s.tokens * in), weight = floats(out * in), bias = floats(out), dy = floats(s.tokens * out);
  benchmark::RegisterBenchmark(("linear_forward" + shape).c_str(), [=](benchmark::State& state) {
    auto y = dy;
    compute_bound(state, flops, loop(state, [&] {
                    linear_forward(x.data(), weight.data(), bias.data(), nullptr, y.data(), s.tokens, in, out);
                  }));
  });
  benchmark::RegisterBenchmark(("linear_backward_input" + shape).c_str(), [=](benchmark::State& state) {
    auto dx = x;
    compute_bound(state, flops, loop(state, [&] {
                    linear_backward_input(dy.data(), weight.data(), dx.data(), s.tokens, in, out, false);
                  }));
  });
  benchmark::RegisterBenchmark(("linear_backward_weight" + shape).c_str(), [=](benchmark::State& state) {
    auto dweight = weight, dbias = bias;
    compute_bound(state, flops, loop(state, [&] {
                    linear_backward_weight(dy.data(), x.data(), dweight.data(), dbias.data(), s.tokens, in, out, true);
                  }));
  });
}

// Calls half() and full() in turns.
template <class Half, class Full>
void compare(const std::string& name, Half half, Full full) {
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) mutable {
    half();
    full();
    double half_seconds = 0, full_seconds = 0;
    for (auto _ : state) {
      const double start = bench::thread_seconds();
      half();
      const double middle = bench::thread_seconds();
      full();
      half_seconds += middle - start;
      full_seconds += bench::thread_seconds() - middle;
    }
    state.counters["times_fp32"] = half_seconds / full_seconds;
  });
}

template <HalfElement T>
void half_linear(const std::string& layer, Shape s, int64_t in, int64_t out) {
  const std::string shape = "/" + std::string(to_string(dtype_of<T>)) + "/" + layer +
                            "/tokens:" + std::to_string(s.tokens) + "/in:" + std::to_string(in) +
                            "/out:" + std::to_string(out);
  const auto forward = [=](auto x, auto weight, auto y) {
    return [=]() mutable { linear_forward(x.data(), weight.data(), nullptr, nullptr, y.data(), s.tokens, in, out); };
  };
  const auto backward_input = [=](auto dy, auto weight, auto dx) {
    return [=]() mutable { linear_backward_input(dy.data(), weight.data(), dx.data(), s.tokens, in, out, false); };
  };
  const auto backward_weight = [=](auto dy, auto x, auto dweight) {
    return [=]() mutable {
      linear_backward_weight(dy.data(), x.data(), dweight.data(), nullptr, s.tokens, in, out, true);
    };
  };
  const auto x = floats(s.tokens * in), weight = floats(out * in), dy = floats(s.tokens * out);
  const auto hx = halves<T>(s.tokens * in), hweight = halves<T>(out * in), hdy = halves<T>(s.tokens * out);
  compare("linear_forward" + shape, forward(hx, hweight, hdy), forward(x, weight, dy));
  compare("linear_backward_input" + shape, backward_input(hdy, hweight, hx), backward_input(dy, weight, x));
  compare("linear_backward_weight" + shape, backward_weight(hdy, hx, weight), backward_weight(dy, x, weight));
}

void attention(AttentionShape s) {
  const std::string shape = "/batch:" + std::to_string(s.batch) + "/sequence:" + std::to_string(s.sequence) +
                            "/heads:" + std::to_string(s.heads) + "/kv_heads:" + std::to_string(s.kv_heads) +
                            "/head_dim:" + std::to_string(s.head_dim);
  const int64_t rows = s.batch * s.sequence, stride = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const int64_t q_width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim;
  const auto qkv = floats(rows * stride), dout = floats(rows * q_width);
  // of the pairs that the causal mask lets through
  const double pairs = static_cast<double>(s.batch * s.heads) * static_cast<double>(s.sequence) *
                       static_cast<double>(s.sequence + 1) / 2;
  const double product = 2.0 * pairs * static_cast<double>(s.head_dim);
  const auto run = [=](benchmark::State& state, bool backward) {
    std::vector<float> out = dout, dqkv = qkv, log_sum_exp(static_cast<size_t>(rows * s.heads));
    std::vector<std::byte> workspace(attention_workspace_bytes(s, DType::Float32));
    const HeadsIn<float> q{qkv.data(), stride}, k{qkv.data() + q_width, stride}, v{k.data + kv_width, stride};
    const HeadsOut<float> dq{dqkv.data(), stride}, dk{dqkv.data() + q_width, stride}, dv{dk.data + kv_width, stride};
    const auto forward = [&] {
      attention_forward<float>(s, q, k, v, {out.data(), q_width}, log_sum_exp.data(), workspace.data());
    };
    forward();
    const auto backward_input = [&] {
      attention_backward_input<float>(s, {dout.data(), q_width}, q, k, v, {out.data(), q_width}, log_sum_exp.data(), dq,
                                      dk, dv, workspace.data());
    };
    compute_bound(state, product * (backward ? 5 : 2), backward ? loop(state, backward_input) : loop(state, forward));
  };
  benchmark::RegisterBenchmark(("attention_forward" + shape).c_str(), run, false);
  benchmark::RegisterBenchmark(("attention_backward_input" + shape).c_str(), run, true);
}

// A kernel that streams `moved` floats.
template <class Run>
void stream(const std::string& name, int64_t moved, const Run& run) {
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    Run own = run;
    memory_bound(state, moved, loop(state, own));
  });
}

// A kernel that streams `moved` floats for `elements` results, and the fp32 one that it is measured against.
template <class Run, class Peer>
void stream_against(const std::string& name, int64_t elements, int64_t moved, const std::string& peer_name,
                    int64_t peer_moved, const Run& run, const Peer& peer) {
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    Peer own_peer = peer;
    own_peer();
    const int64_t repeats = std::max<int64_t>(1, 40'000'000 / elements);
    const double start = bench::thread_seconds();
    for (int64_t i = 0; i < repeats; ++i) {
      own_peer();
      benchmark::ClobberMemory();
    }
    const double peer_seconds = (bench::thread_seconds() - start) / static_cast<double>(repeats);
    Run own = run;
    const double seconds = loop(state, own);
    memory_bound(state, moved, seconds);
    state.counters["ns_per_element"] = 1e9 * seconds / static_cast<double>(elements);
    state.counters["times_" + peer_name] = seconds / peer_seconds;
    state.counters["bytes_of_" + peer_name] = static_cast<double>(moved) / static_cast<double>(peer_moved);
  });
}

void streams(Shape s) {
  const int64_t size = s.tokens * s.hidden;
  const std::string shape = "/tokens:" + std::to_string(s.tokens) + "/width:" + std::to_string(s.hidden);
  struct Buffers {
    std::vector<float> x, dy, y, gamma, beta, dgamma, dbeta, mean, rstd;
  };
  const auto norm = [=] {
    return Buffers{floats(size),     floats(size),     floats(size),     floats(s.hidden), floats(s.hidden),
                   floats(s.hidden), floats(s.hidden), floats(s.tokens), floats(s.tokens)};
  };
  stream("layernorm_forward" + shape, 2 * size, [=, b = norm()]() mutable {
    layernorm_forward(b.x.data(), b.gamma.data(), b.beta.data(), b.y.data(), b.mean.data(), b.rstd.data(), s.tokens,
                      s.hidden, 1e-5f);
  });
  stream("layernorm_backward_input" + shape, 4 * size, [=, b = norm()]() mutable {
    layernorm_backward_input(b.dy.data(), b.x.data(), b.gamma.data(), b.mean.data(), b.rstd.data(), b.y.data(),
                             s.tokens, s.hidden, true);
  });
  stream("layernorm_backward_weight" + shape, 2 * size, [=, b = norm()]() mutable {
    layernorm_backward_weight(b.dy.data(), b.x.data(), b.mean.data(), b.rstd.data(), b.dgamma.data(), b.dbeta.data(),
                              s.tokens, s.hidden, true);
  });
  stream("rmsnorm_forward" + shape, 2 * size, [=, b = norm()]() mutable {
    rmsnorm_forward(b.x.data(), b.gamma.data(), b.y.data(), b.rstd.data(), s.tokens, s.hidden, 1e-5f);
  });
  stream("rmsnorm_backward_input" + shape, 4 * size, [=, b = norm()]() mutable {
    rmsnorm_backward_input(b.dy.data(), b.x.data(), b.gamma.data(), b.rstd.data(), b.y.data(), s.tokens, s.hidden,
                           true);
  });
  stream("rmsnorm_backward_weight" + shape, 2 * size, [=, b = norm()]() mutable {
    rmsnorm_backward_weight(b.dy.data(), b.x.data(), b.rstd.data(), b.dgamma.data(), s.tokens, s.hidden, true);
  });
  stream("rotary_forward" + shape, 2 * size,
         [=, x = floats(size), c = floats(s.tokens * 32), n = floats(s.tokens * 32)]() mutable {
           rotary_forward(x.data(), s.hidden, c.data(), n.data(), 1, s.tokens, s.heads, s.hidden / s.heads);
         });

  const int64_t ffn = s.tokens * s.ffn;
  const std::string ffn_shape = "/tokens:" + std::to_string(s.tokens) + "/ffn:" + std::to_string(s.ffn);
  stream("gelu_forward" + ffn_shape, 2 * ffn,
         [=, x = floats(ffn), y = floats(ffn)]() mutable { gelu_forward(x.data(), y.data(), ffn); });
  stream("gelu_backward_input" + ffn_shape, 4 * ffn,
         [=, x = floats(ffn), y = floats(ffn), z = floats(ffn), dy = floats(ffn)]() mutable {
           gelu_backward_input(dy.data(), x.data(), z.data(), y.data(), ffn);
         });
  stream("swiglu_forward" + ffn_shape, 3 * ffn, [=, x = floats(ffn), y = floats(ffn), z = floats(ffn)]() mutable {
    swiglu_forward(x.data(), y.data(), z.data(), ffn);
  });
  stream("swiglu_backward_input" + ffn_shape, 6 * ffn,
         [=, dy = floats(ffn), x = floats(ffn), y = floats(ffn), dx = floats(ffn), dz = floats(ffn),
          z = floats(ffn)]() mutable {
           swiglu_backward_input(dy.data(), x.data(), y.data(), dx.data(), dz.data(), z.data(), ffn);
         });
  stream("add" + shape, 3 * size, [=, x = floats(size), y = floats(size)]() mutable { add(x.data(), y.data(), size); });

  const int64_t logits = s.tokens * s.vocabulary;
  const std::string loss_shape = "/tokens:" + std::to_string(s.tokens) + "/vocabulary:" + std::to_string(s.vocabulary);
  const std::vector<int32_t> targets(static_cast<size_t>(s.tokens), 5);
  stream("cross_entropy_forward" + loss_shape, logits, [=, x = floats(logits), l = floats(s.tokens)]() mutable {
    benchmark::DoNotOptimize(cross_entropy_forward(x.data(), targets.data(), l.data(), s.tokens, s.vocabulary));
  });
  stream("cross_entropy_backward_input" + loss_shape, 2 * logits,
         [=, x = floats(logits), l = floats(s.tokens)]() mutable {
           cross_entropy_backward_input(x.data(), targets.data(), l.data(), s.tokens, s.vocabulary, 1);
         });
  stream("embedding_forward" + shape, 3 * size,
         [=, table = floats(s.vocabulary * s.hidden), positions = floats(size), out = floats(size)]() mutable {
           embedding_forward(targets.data(), table.data(), positions.data(), out.data(), 1, s.tokens, s.hidden,
                             s.vocabulary);
         });
  stream("embedding_backward_weight" + shape, 3 * size,
         [=, table = floats(s.vocabulary * s.hidden), positions = floats(size), out = floats(size)]() mutable {
           embedding_backward_weight(targets.data(), out.data(), table.data(), positions.data(), 1, s.tokens, s.tokens,
                                     s.hidden, s.vocabulary, true);
         });
}

template <HalfElement T>
void half_streams(Shape s) {
  const std::string type = "/" + std::string(to_string(dtype_of<T>));
  const int64_t size = s.tokens * s.hidden, ffn = s.tokens * s.ffn;
  const auto gelu = [=](auto x, auto y) { return [=]() mutable { gelu_forward(x.data(), y.data(), ffn); }; };
  compare("gelu_forward" + type, gelu(halves<T>(ffn), halves<T>(ffn)), gelu(floats(ffn), floats(ffn)));
  const auto norm = [=](auto x, auto y, auto gain, auto statistics) {
    return [=]() mutable {
      layernorm_forward(x.data(), gain.data(), gain.data(), y.data(), statistics.data(), statistics.data(), s.tokens,
                        s.hidden, 1e-5f);
    };
  };
  compare("layernorm_forward" + type, norm(halves<T>(size), halves<T>(size), halves<T>(s.hidden), floats(s.tokens)),
          norm(floats(size), floats(size), floats(s.hidden), floats(s.tokens)));
  stream("convert_from" + type + "/count:" + std::to_string(ffn), ffn * 3 / 2,
         [=, x = halves<T>(ffn), y = floats(ffn)]() mutable { convert(x.data(), y.data(), ffn); });
  stream("convert_to" + type + "/count:" + std::to_string(ffn), ffn * 3 / 2,
         [=, x = floats(ffn), y = halves<T>(ffn)]() mutable { convert(x.data(), y.data(), ffn); });
}

template <HalfElement T>
void half_attention(AttentionShape s) {
  const int64_t rows = s.batch * s.sequence, stride = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const int64_t q_width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim;
  const auto run = [=]<Element E>(std::vector<E> qkv, std::vector<E> out, bool backward) {
    return [=, dqkv = qkv, dout = out, log_sum_exp = floats(rows * s.heads),
            workspace = std::vector<std::byte>(attention_workspace_bytes(s, dtype_of<E>))]() mutable {
      const auto heads = [&](auto& memory, int64_t first) { return memory.data() + first; };
      const HeadsIn<E> q{heads(qkv, 0), stride}, k{heads(qkv, q_width), stride},
          v{heads(qkv, q_width + kv_width), stride};
      if (!backward) {
        attention_forward<E>(s, q, k, v, {out.data(), q_width}, log_sum_exp.data(), workspace.data());
      } else {
        attention_backward_input<E>(s, {dout.data(), q_width}, q, k, v, {out.data(), q_width}, log_sum_exp.data(),
                                    {heads(dqkv, 0), stride}, {heads(dqkv, q_width), stride},
                                    {heads(dqkv, q_width + kv_width), stride}, workspace.data());
      }
    };
  };
  for (const bool backward : {false, true}) {
    compare(std::string(backward ? "attention_backward_input/" : "attention_forward/") +
                std::string(to_string(dtype_of<T>)) + "/sequence:" + std::to_string(s.sequence),
            run(halves<T>(rows * stride), halves<T>(rows * q_width), backward),
            run(floats(rows * stride), floats(rows * q_width), backward));
  }
}

template <HalfElement T>
void half_kernels(Shape s) {
  half_linear<T>("qkv", s, s.hidden, 3 * s.hidden);
  half_linear<T>("proj", s, s.hidden, s.hidden);
  half_linear<T>("fc", s, s.hidden, s.ffn);
  half_linear<T>("fcproj", s, s.ffn, s.hidden);
  half_linear<T>("head", s, s.hidden, s.vocabulary);
  const Shape large{.tokens = 1024, .hidden = 768, .heads = 12, .kv_heads = 12, .ffn = 3072};
  half_linear<T>("fc", large, large.hidden, large.ffn);
  half_attention<T>({1, 256, 5, 5, 64});
  half_streams<T>(s);
}

void optimizers(int64_t count) {
  const std::string shape = "/count:" + std::to_string(count);
  const AdamW adam{.learning_rate = 1e-3f,
                   .beta1 = 0.9,
                   .beta2 = 0.95,
                   .epsilon = 1e-8f,
                   .weight_decay = 0.1f,
                   .bias_correction1 = 0.5f,
                   .bias_correction2 = 0.5f,
                   .gradient_scale = 1};
  stream("adamw_step" + shape, 7 * count,
         [=, p = floats(count), g = floats(count), m = floats(count),
          v = std::vector<float>(static_cast<size_t>(count))]() mutable {
           adamw_step(adam, p.data(), g.data(), m.data(), v.data(), count);
         });
  stream("sum_of_squares" + shape, count,
         [=, g = floats(count)] { benchmark::DoNotOptimize(sum_of_squares(g.data(), count)); });
  stream("all_finite" + shape, count,
         [=, g = floats(count)] { benchmark::DoNotOptimize(all_finite(g.data(), count)); });
  stream(
      "sum_in_order/ranks:4" + shape, 5 * count,
      [=, a = floats(count), b = floats(count), c = floats(count), d = floats(count), out = floats(count)]() mutable {
        const float* in[] = {a.data(), b.data(), c.data(), d.data()};
        sum_in_order(in, 4, out.data(), count, false);
      });
}

// What --reproducible adds: conversion of each micro-batch's gradients, sums of 8 bytes, and the way back.
void exact_sums(int64_t count) {
  const std::string shape = "/count:" + std::to_string(count);
  const std::vector<int64_t> sums(static_cast<size_t>(count), 1);
  const ExactForm form{.contributions = 1024};
  const auto add_floats = [=, x = floats(count), y = floats(count)]() mutable { add(x.data(), y.data(), count); };
  stream_against(
      "exact_add" + shape, count, 5 * count, "add", 3 * count,
      [=, x = floats(count), sum = sums]() mutable {
        benchmark::DoNotOptimize(exact_add(form, x.data(), sum.data(), count, true));
      },
      add_floats);
  stream_against(
      "exact_to_float" + shape, count, 3 * count, "add", 3 * count,
      [=, sum = sums, out = floats(count)]() mutable { exact_to_float(form, sum.data(), out.data(), count); },
      add_floats);
  stream_against(
      "sum_in_order_of_integers/ranks:4" + shape, count, 10 * count, "fp32", 5 * count,
      [=, a = sums, b = sums, c = sums, d = sums, out = sums]() mutable {
        const int64_t* in[] = {a.data(), b.data(), c.data(), d.data()};
        sum_in_order(in, 4, out.data(), count, false);
      },
      [=, a = floats(count), b = floats(count), c = floats(count), d = floats(count), out = floats(count)]() mutable {
        const float* in[] = {a.data(), b.data(), c.data(), d.data()};
        sum_in_order(in, 4, out.data(), count, false);
      });
}

void dropouts(Shape s) {
  const DropoutKey key{.seed = 1, .step = 2, .layer = 3, .site = 4};
  const int64_t size = s.tokens * s.hidden;
  const std::string shape = "/tokens:" + std::to_string(s.tokens) + "/width:" + std::to_string(s.hidden);
  stream_against(
      "dropout_forward" + shape, size, 2 * size, "add", 3 * size,
      [=, x = floats(size), y = floats(size)]() mutable { dropout_forward(x.data(), y.data(), key, 0, 1, size, 0.1f); },
      [=, x = floats(size), y = floats(size)]() mutable { add(x.data(), y.data(), size); });
  constexpr int64_t tile = 64, elements = tile * tile;
  const AttentionTile part{
      .sample = 1, .sequence = 1024, .head = 3, .first_query = 64, .queries = tile, .first_key = 0, .keys = tile};
  for (const bool keys_packed : {true, false}) {
    stream_against(
        std::string("attention_dropout_tile/packed:") + (keys_packed ? "keys" : "queries"), elements, elements, "add",
        3 * elements,
        [=, out = floats(elements)]() mutable {
          attention_dropout_tile(out.data(), keys_packed ? tile : 1, keys_packed ? 1 : tile, key, part, 0.1f);
        },
        [=, x = floats(elements), y = floats(elements)]() mutable { add(x.data(), y.data(), elements); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Shape s;
  linear("qkv", s, s.hidden, 3 * s.hidden);
  linear("proj", s, s.hidden, s.hidden);
  linear("fc", s, s.hidden, s.ffn);
  linear("fcproj", s, s.ffn, s.hidden);
  linear("head", s, s.hidden, s.vocabulary);
  attention({1, 256, 5, 5, 64});
  attention({1, 1024, 12, 12, 64});
  attention({1, 256, 8, 2, 64});
  streams(s);
  half_kernels<BFloat16>(s);
  half_kernels<Float16>(s);
  optimizers(1 << 18);
  optimizers(1 << 22);
  exact_sums(1 << 18);
  exact_sums(1 << 22);
  dropouts(s);
  benchmark::AddCustomContext("processor", bench::processor_name());
  benchmark::AddCustomContext("products", gemm_description());
  benchmark::AddCustomContext("vectors", bench::vector_instructions());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
