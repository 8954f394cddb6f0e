// The layouts that the tests of programs go through, and a tiny model in one line.
#pragma once
#include <fmt/format.h>

#include <array>
#include <functional>
#include <string>

#include "layout/layout.h"
#include "program/compile.h"

namespace shardpipe {

// Odd sizes: a vocabulary of 67 and a width of 4 leave shards that do not divide, and some that are empty.
inline Model tiny_model(int64_t layers, bool tied) {
  ModelConfig config;
  config.name = "tiny";
  config.layers = layers;
  config.hidden = 4;
  config.heads = 2;
  config.kv_heads = 2;
  config.ffn = 16;
  config.vocab_size = 67;
  config.seq_len = 8;
  config.tied_embeddings = tied;
  return make_model(config);
}

inline Layout tiny_layout(std::string schedule, int64_t pp, int64_t micro_batches, int zero, ReduceEvery reduce_every,
                          int64_t dp = 2, bool reshard_after_forward = true) {
  return {.pp = pp,
          .dp = dp,
          .zero = zero,
          .schedule = std::move(schedule),
          .chunks_per_rank = 0,
          .micro_batch_size = 2,
          .global_batch_size = 2 * dp * micro_batches,
          .reduce_every = reduce_every,
          .reshard_after_forward = reshard_after_forward,
          .stages = {}};
}

inline std::string to_string(const Layout& layout) {
  return fmt::format("{} pp {} dp {}{} zero {} m {} {} reduce {}{}{}{}{}", layout.schedule, layout.pp, layout.dp,
                     layout.replicate == 1 ? "" : fmt::format(" in {} copies", layout.replicate), layout.zero,
                     layout.micro_batches(), to_string(layout.precision),
                     layout.reduce_every == ReduceEvery::Micro ? "micro" : "step",
                     layout.reduce_dtype == DType::BFloat16 ? " in bf16"
                     : layout.reproducible                  ? " exactly"
                                                            : "",
                     layout.zero == 3 && !layout.reshard_after_forward ? " held" : "",
                     layout.recompute == "none" ? "" : " recompute " + layout.recompute,
                     layout.offload == "none" ? "" : " offload " + layout.offload);
}

inline std::vector<uint16_t> blocks_of_rank(const StepShape& shape, int64_t rank) {
  std::vector<uint16_t> blocks;
  for (uint16_t chunk = 0; chunk < shape.schedule.chunks; ++chunk)
    for (uint16_t b = shape.first_block[chunk]; b < shape.first_block[chunk + 1]; ++b)
      if (shape.schedule.rank_of_chunk[chunk] == rank) blocks.push_back(b);
  return blocks;
}

struct Case {
  const Model& model;
  const Layout& layout;
  std::string name;  // says all that is needed to repeat it
  StepShape shape() const { return step_shape(model, layout, 2); }
};

// Every schedule × pp × micro-batches (fewer than stages, not divisible by them) × ZeRO × cadence × reshard × tied ×
// dp, each with one of the rules of recomputation and one of the precisions in turn. `every` takes each n-th alone, for
// tests that cost more; a prime, so that it meets all values of all axes.
inline void for_each_case(const std::function<void(const Case&)>& visit, int every = 1) {
  // Seven, eleven, thirteen, seventeen, nineteen and twenty-three in turn: no axis has a multiple of that many values,
  // so that each meets every value of it.
  constexpr std::array rules{"none", "full", "none", "selective", "every:2", "none", "blocks:0-2,7"};
  constexpr std::array precisions{DType::Float32,  DType::BFloat16, DType::Float32, DType::Float16,
                                  DType::Float32,  DType::BFloat16, DType::Float32, DType::Float32,
                                  DType::BFloat16, DType::Float16,  DType::Float32};
  constexpr std::array offloads{"optimizer",
                                "params",
                                "optimizer,params",
                                "activations",
                                "optimizer,activations",
                                "params,activations",
                                "optimizer,params,activations"};
  size_t number = 0, visited = 0;
  for (const bool tied : {true, false}) {
    const Model model = tiny_model(6, tied);
    for (const std::string& schedule : schedule_names())
      for (const int64_t pp : {1, 2, 3, 4, 6}) {
        if (tiny_layout(schedule, pp, 1, 0, ReduceEvery::Step).chunks() > std::ssize(model.blocks)) continue;
        for (const int64_t micro_batches : {1, 2, 3, 5, 8})
          for (const int64_t dp : {1, 2, 3, 4})
            for (const int zero : {0, 1, 2, 3})
              for (const ReduceEvery reduce_every : {ReduceEvery::Micro, ReduceEvery::Step})
                for (const bool reshard : {true, false}) {
                  if (zero < 3 && !reshard) continue;  // says nothing there
                  if (number++ % static_cast<size_t>(every) != 0) continue;
                  Layout layout = tiny_layout(schedule, pp, micro_batches, zero, reduce_every, dp, reshard);
                  layout.recompute = rules[visited % rules.size()];
                  layout.precision = precisions[visited % precisions.size()];
                  if (visited % 17 % 3 == 1) layout.reduce_dtype = DType::BFloat16;
                  layout.reproducible = visited % 23 % 3 == 1 && layout.reduce_dtype == DType::Float32;
                  if (visited % 19 < offloads.size()) layout.offload = offloads[visited % 19];
                  layout.offload_piece = 50;  // leaves a rest
                  std::vector<int64_t> replicates{1};
                  for (int64_t group = 1; zero > 0 && group < dp; group *= 2)
                    if (dp % group == 0) replicates.push_back(dp / group);
                  layout.replicate = replicates[visited++ % 13 % replicates.size()];
                  visit({model, layout, to_string(layout) + (tied ? " tied" : " untied")});
                }
      }
  }
}

}  // namespace shardpipe
