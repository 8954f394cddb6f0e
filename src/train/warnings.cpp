#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "model/shape/model.h"
#include "program/memory.h"
#include "report/table.h"
#include "train/run.h"

namespace shardpipe {

HeldBytes held_bytes(const Step& step) {
  HeldBytes sum;
  for (size_t r = 0; r < step.training.by_pipeline_rank.size(); ++r) {
    const RankMemory held = memory(step.training.by_pipeline_rank[r]);
    sum.arena += std::max(held.arena, step.evaluation.by_pipeline_rank[r].arena_bytes);
    sum.activations += held.activations;
    sum.store += held.store;
  }
  const auto replicas = static_cast<uint64_t>(step.shape.layout.dp);
  return {.arena = sum.arena * replicas, .activations = sum.activations * replicas, .store = sum.store * replicas};
}

std::vector<std::string> warnings_of(const RunConfig& config, int64_t training_tokens, const HeldBytes& held) {
  std::vector<std::string> warnings;
  const auto seen =
      static_cast<double>(config.steps) * static_cast<double>(config.layout.global_batch_size * config.model.seq_len);
  const auto parameters = static_cast<double>(make_model(config.model).parameters());
  // Compute-optimal training sees about 20 tokens a parameter (Hoffmann et al., arXiv:2203.15556); a tenth of that is
  // surely short.
  if (seen < 2 * parameters)
    warnings.push_back(
        fmt::format("{} tokens are {:.2g} for each of {} parameters; compute-optimal training sees about 20: a smaller "
                    "--model or more --steps learn more from the same time",
                    human_count(seen), seen / parameters, human_count(parameters)));
  // Beyond about 4 epochs repeated text adds little (Muennighoff et al., arXiv:2305.16264).
  if (training_tokens > 0 && seen > 4 * static_cast<double>(training_tokens))
    warnings.push_back(
        fmt::format("the training text of {} tokens is read {:.1f} times; after about 4 times it teaches little: more "
                    "--data or fewer --steps",
                    human_count(static_cast<double>(training_tokens)), seen / static_cast<double>(training_tokens)));
  if (config.layout.precision == DType::Float16)
    warnings.push_back(
        fmt::format("--precision fp16 holds numbers up to 65504 and needs its loss scaled (--loss-scale {}); "
                    "--precision bf16, which "
                    "is here as well, has the range of fp32 in the same 16 bits and needs none",
                    config.loss_scale.initial));
  const auto machine_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t in_memory = held.arena + (offload_folder(config).empty() ? held.store : 0);
  if (in_memory > machine_bytes)
    warnings.push_back(fmt::format(
        "all ranks together hold {}, of which {} are activations; this machine has {}: {}a smaller --micro-batch-size, "
        "--schedule 1f1b or a higher --zero hold less",
        human_bytes(in_memory), human_bytes(held.activations), human_bytes(machine_bytes),
        config.layout.recompute == "none" ? "--recompute full, " : ""));
  if (config.layout.offload != "none" && held.store == 0)
    warnings.push_back(
        fmt::format("--offload {} finds nothing to keep elsewhere: SGD in fp32 has no optimizer state, and activations "
                    "that are used again at once stay",
                    config.layout.offload));
  return warnings;
}

}  // namespace shardpipe
