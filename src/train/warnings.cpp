#include <fmt/format.h>
#include <unistd.h>

#include "model/shape/model.h"
#include "report/table.h"
#include "train/run.h"

namespace shardpipe {

std::vector<std::string> warnings_of(const RunConfig& config, int64_t training_tokens,
                                     uint64_t arena_bytes_of_all_ranks) {
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
  const auto machine_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (arena_bytes_of_all_ranks > machine_bytes)
    warnings.push_back(
        fmt::format("all ranks together hold {}, this machine has {}: a smaller --micro-batch-size, --schedule 1f1b or "
                    "a higher --zero hold less",
                    human_bytes(arena_bytes_of_all_ranks), human_bytes(machine_bytes)));
  return warnings;
}

}  // namespace shardpipe
