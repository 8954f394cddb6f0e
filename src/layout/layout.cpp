#include "layout/layout.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/nearest_name.h"
#include "schedules/schedule.h"

namespace shardpipe {
namespace {

constexpr int64_t most_ranks = 4096;            // threads of one process
constexpr int64_t most_micro_batches = 65'535;  // a schedule numbers them in 16 bits
constexpr int64_t most_sequences = int64_t{1} << 31;

// nullopt where the product does not fit.
std::optional<int64_t> product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result)) return std::nullopt;
  return result;
}

bool between(int64_t value, int64_t least, int64_t most) { return least <= value && value <= most; }

std::string blocks_in_words(const Model& model) {
  const int64_t layers = std::ranges::count(model.blocks, BlockKind::Layer, &Block::kind);
  return fmt::format("{} has {} blocks (embedding + {} layers + head)", model.config.name, model.blocks.size(), layers);
}

void check_ranks(const Layout& layout, const Model& model, std::vector<std::string>& problems) {
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  if (!between(layout.pp, 1, most_ranks))
    problems.push_back(fmt::format("--pp: found {}, allowed: 1 to {}", layout.pp,
                                   blocks > 0 ? std::min(blocks, most_ranks) : most_ranks));
  else if (blocks > 0 && layout.pp > blocks)
    problems.push_back(fmt::format("--pp: found {} stages, but {}, set by --layers; allowed: 1 to {}", layout.pp,
                                   blocks_in_words(model), blocks));
  if (!between(layout.dp, 1, most_ranks))
    problems.push_back(fmt::format("--dp: found {}, allowed: 1 to {}", layout.dp, most_ranks));
  if (between(layout.pp, 1, most_ranks) && between(layout.dp, 1, most_ranks) && layout.ranks() > most_ranks)
    problems.push_back(
        fmt::format("--pp {} × --dp {}: found {} ranks, allowed: 1 to {} in one process; --dp {} would be", layout.pp,
                    layout.dp, layout.ranks(), most_ranks, most_ranks / layout.pp));
}

// A schedule from a file says its ranks, chunks and micro-batches itself.
bool check_own_schedule(const Layout& layout, const Model& model, std::vector<std::string>& problems) {
  const Schedule& own = *layout.own_schedule;
  if (static_cast<int64_t>(own.by_rank.size()) != layout.pp)
    problems.push_back(fmt::format("--pp {}: --schedule {} is of {} ranks; allowed: --pp {}", layout.pp,
                                   layout.schedule, own.by_rank.size(), own.by_rank.size()));
  if (layout.chunks_per_rank != 0)
    problems.push_back(
        fmt::format("--chunks: found {} beside --schedule {}, which places its {} chunks itself; "
                    "allowed: none",
                    layout.chunks_per_rank, layout.schedule, own.chunks));
  const int64_t unit = layout.micro_batch_size * layout.dp;
  if (between(layout.micro_batch_size, 1, most_sequences) && between(layout.dp, 1, most_ranks) &&
      layout.global_batch_size % unit == 0 && layout.micro_batches() != own.micro_batches)
    problems.push_back(fmt::format(
        "--global-batch-size {}: found {} micro-batches a rank, but --schedule {} is of {}; --global-batch-size {} "
        "would be",
        layout.global_batch_size, layout.micro_batches(), layout.schedule, own.micro_batches,
        unit * own.micro_batches));
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  if (blocks > 0 && own.chunks > blocks)
    problems.push_back(fmt::format("--schedule {}: found {} chunks, but {}, set by --layers; allowed: 1 to {}",
                                   layout.schedule, own.chunks, blocks_in_words(model), blocks));
  return true;
}

// A schedule that exists, with as many chunks as it takes and the model has blocks for. False: no number of chunks to
// count with.
bool check_schedule(const Layout& layout, const Model& model, std::vector<std::string>& problems) {
  if (layout.own_schedule) return check_own_schedule(layout, model, problems);
  const Generator* generator = find_generator(layout.schedule);
  if (generator == nullptr) {
    const std::vector<std::string> names = schedule_names();
    problems.push_back(fmt::format("--schedule: found '{}', allowed: {}, file:PATH{}", layout.schedule,
                                   fmt::join(names, ", "), did_you_mean(layout.schedule, names)));
    return true;
  }
  const int64_t fewest = generator->fewest_chunks, most = generator->most_chunks;
  if (layout.chunks_per_rank != 0 && !between(layout.chunks_per_rank, fewest, most)) {
    problems.push_back(fmt::format("--chunks: found {}, allowed with --schedule {}: {}", layout.chunks_per_rank,
                                   layout.schedule,
                                   fewest == most ? std::to_string(most) : fmt::format("{} to {}", fewest, most)));
    return false;
  }
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  if (blocks == 0 || !between(layout.pp, 1, std::min(blocks, most_ranks))) return true;  // said already
  if (layout.chunks() > blocks)
    problems.push_back(fmt::format(
        "--pp {} × {} chunks a rank (--schedule {}): found {} stages, but {}, set by --layers; allowed: 1 to {}",
        layout.pp, layout.chunks() / layout.pp, layout.schedule, layout.chunks(), blocks_in_words(model), blocks));
  return true;
}

// Of all ranks, or of each. The two uses of a tied embedding add up their gradients, whole or shard by shard: where
// they lie on two ranks, both shard or neither.
void check_zero(const Layout& layout, const Model& model, bool chunks_are_known, std::vector<std::string>& problems) {
  const std::vector<int> stages = layout.zero_of_ranks.empty() ? std::vector{layout.zero} : layout.zero_of_ranks;
  for (const int zero : stages)
    if (!between(zero, 0, 3)) {
      problems.push_back(fmt::format("--zero: found {}, allowed: 0 to 3", zero));
      return;
    }
  if (layout.zero_of_ranks.empty() || !between(layout.pp, 1, most_ranks)) return;
  if (static_cast<int64_t>(stages.size()) != layout.pp) {
    problems.push_back(fmt::format("--zero {}: found {} stages, allowed: one for all, or {}, as --pp says",
                                   layout.zero_text(), stages.size(), layout.pp));
    return;
  }
  const Generator* generator = find_generator(layout.schedule);
  if (!model.config.tied_embeddings || !chunks_are_known || (generator == nullptr && !layout.own_schedule)) return;
  const Schedule schedule =
      layout.own_schedule
          ? *layout.own_schedule
          : make_schedule(layout.schedule, {.ranks = static_cast<uint16_t>(layout.pp),
                                            .chunks_per_rank = static_cast<uint16_t>(layout.chunks() / layout.pp)});
  const uint16_t first = schedule.rank_of_chunk.front(), last = schedule.rank_of_chunk.back();
  if ((stages[first] == 0) != (stages[last] == 0))
    problems.push_back(fmt::format(
        "--zero {}: found ZeRO {} on rank {} with the embedding and {} on rank {} with the head, which are tied; "
        "allowed: 0 on both, 1 to 3 on both, or --untied",
        layout.zero_text(), stages[first], first, stages[last], last));
}

void check_reshard(const Layout& layout, std::vector<std::string>& problems) {
  const auto found = static_cast<int64_t>(layout.reshard_of_ranks.size());
  if (found == 0 || found == layout.pp || !between(layout.pp, 1, most_ranks)) return;
  problems.push_back(
      fmt::format("--reshard-after-forward: found {} answers, allowed: one for all pipeline ranks, or {}, as --pp says",
                  found, layout.pp));
}

// Sums are pairwise: a group of 2^k neighbours is summed by itself without changing the bits of the whole.
void check_replicate(const Layout& layout, std::vector<std::string>& problems) {
  if (layout.replicate == 1) return;
  if (!between(layout.replicate, 1, most_ranks)) {
    problems.push_back(fmt::format("--replicate: found {}, allowed: 1 to --dp", layout.replicate));
    return;
  }
  if (!between(layout.dp, 1, most_ranks)) return;
  std::vector<int64_t> allowed;
  for (int64_t group = 1; group <= layout.dp; group *= 2)
    if (layout.dp % group == 0) allowed.insert(allowed.begin(), layout.dp / group);
  if (std::ranges::find(allowed, layout.replicate) == allowed.end())
    problems.push_back(
        fmt::format("--replicate {}: found --dp {}, allowed: {}, which leave shard groups of 1, 2, 4, … replicas",
                    layout.replicate, layout.dp, fmt::join(allowed, ", ")));
  const std::vector<int> stages = layout.zero_of_ranks.empty() ? std::vector{layout.zero} : layout.zero_of_ranks;
  if (std::ranges::all_of(stages, [](int zero) { return zero == 0; }))
    problems.push_back(fmt::format(
        "--replicate {}: found --zero 0, which shards nothing to replicate; allowed: --zero 1 to 3, or --replicate 1",
        layout.replicate));
}

void check_batch(const Layout& layout, std::vector<std::string>& problems) {
  const bool micro_batch_is_right = between(layout.micro_batch_size, 1, most_sequences);
  const bool global_batch_is_right = between(layout.global_batch_size, 1, most_sequences);
  if (!micro_batch_is_right)
    problems.push_back(
        fmt::format("--micro-batch-size: found {}, allowed: 1 to {}", layout.micro_batch_size, most_sequences));
  if (!global_batch_is_right)
    problems.push_back(
        fmt::format("--global-batch-size: found {}, allowed: 1 to {}", layout.global_batch_size, most_sequences));
  if (!micro_batch_is_right || !global_batch_is_right || !between(layout.dp, 1, most_ranks)) return;

  const int64_t unit = layout.micro_batch_size * layout.dp;  // one micro-batch on every replica; both are in range
  const int64_t below = layout.global_batch_size / unit * unit;
  if (below != layout.global_batch_size) {
    const std::string nearest =
        below == 0 ? fmt::format("{} would be", unit) : fmt::format("{} or {} would be", below, below + unit);
    problems.push_back(fmt::format("--global-batch-size {} is not --micro-batch-size {} × --dp {} × an integer: {}",
                                   layout.global_batch_size, layout.micro_batch_size, layout.dp, nearest));
  } else if (layout.micro_batches() > most_micro_batches) {
    problems.push_back(fmt::format(
        "--global-batch-size {}: found {} micro-batches of --micro-batch-size {} a rank, allowed: 1 to {}; "
        "--global-batch-size {} or --micro-batch-size {} would be",
        layout.global_batch_size, layout.micro_batches(), layout.micro_batch_size, most_micro_batches,
        unit * most_micro_batches, (layout.micro_batches() / most_micro_batches + 1) * layout.micro_batch_size));
  }
}

// The largest array of a micro-batch must have a size that 64 bits can hold; everything else is counted from such
// sizes.
void check_micro_batch_bytes(const Layout& layout, const Model& model, std::vector<std::string>& problems) {
  if (!between(layout.micro_batch_size, 1, most_sequences) || model.blocks.empty()) return;
  const ModelConfig& config = model.config;
  const int64_t widest = std::max({config.vocab_size, config.ffn, config.hidden});
  if (product({layout.micro_batch_size, config.seq_len, widest, int64_t{64}})) return;
  problems.push_back(fmt::format(
      "--micro-batch-size {} × --seq-len {} × the model's widest array ({}, of --hidden, --ffn and --vocab-size): "
      "found more bytes than 64 bits count, allowed: less",
      layout.micro_batch_size, config.seq_len, widest));
}

// fp32 parameters, gradients and two moments of all ranks together; and every block's share of that.
void check_parameter_bytes(const Model& model, std::vector<std::string>& problems) {
  constexpr uint64_t bytes_a_parameter = 16;
  if (model.parameters() <= std::numeric_limits<int64_t>::max() / bytes_a_parameter) return;
  problems.push_back(fmt::format(
      "--layers, --hidden, --ffn and --vocab-size: found {} parameters, whose states take more bytes than 64 "
      "bits count, allowed: less",
      model.parameters()));
}

void check_stages(const Layout& layout, const Model& model, bool chunks_are_known, std::vector<std::string>& problems) {
  if (layout.stages.empty()) return;  // none given: they are balanced
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  const std::string found = fmt::format("--stages {}", fmt::join(layout.stages, ","));
  if (chunks_are_known && between(layout.pp, 1, most_ranks) &&
      static_cast<int64_t>(layout.stages.size()) != layout.chunks())
    problems.push_back(
        fmt::format("{}: found {} stages, allowed: {}, as --pp {}", found, layout.stages.size(), layout.chunks(),
                    layout.chunks() == layout.pp ? std::string("says")
                                                 : fmt::format("× {} chunks a rank say", layout.chunks() / layout.pp)));
  int64_t sum = 0;
  for (const int64_t count : layout.stages) {
    if (count < 1) {
      problems.push_back(fmt::format("{}: found a stage of {} blocks, allowed: 1 or more in each", found, count));
      return;
    }
    if (__builtin_add_overflow(sum, count, &sum)) sum = std::numeric_limits<int64_t>::max();
  }
  if (blocks > 0 && sum != blocks)
    problems.push_back(fmt::format("{}: found {} blocks in all, allowed: {}, since {}, set by --layers", found, sum,
                                   blocks, blocks_in_words(model)));
}

void check_recompute(const Layout& layout, const Model& model, std::vector<std::string>& problems) {
  if (model.blocks.empty()) return;
  try {
    recompute_of_blocks(layout.recompute, model);
  } catch (const InputError& error) {
    problems.insert(problems.end(), error.problems().begin(), error.problems().end());
  }
}

// Sums that are exact leave nothing for a rounded term to be.
void check_reproducible(const Layout& layout, std::vector<std::string>& problems) {
  if (layout.reproducible && layout.reduce_dtype != DType::Float32)
    problems.push_back(
        fmt::format("--reduce-dtype {} beside --reproducible: found rounded terms, which depend on --dp and "
                    "--reduce-every; allowed there: --reduce-dtype fp32",
                    to_string(layout.reduce_dtype)));
}

// Pieces are numbered in 16 bits.
void check_offload(const Layout& layout, const Model& model, std::vector<std::string>& problems) {
  uint64_t least = 1;
  try {
    if (offload_of(layout.offload).optimizer) {
      constexpr uint64_t most_pieces = 65'534;
      for (const ParameterGroup& group : model.groups)
        least = std::max(least, (group.elements + most_pieces - 1) / most_pieces);
    }
  } catch (const InputError& error) {
    problems.insert(problems.end(), error.problems().begin(), error.problems().end());
  }
  if (layout.offload_piece < 1 || static_cast<uint64_t>(layout.offload_piece) < least)
    problems.push_back(
        fmt::format("--offload-piece: found {}, allowed: {} or more elements", layout.offload_piece, least));
}

}  // namespace

Offload offload_of(const std::string& list) {
  Offload offload;
  if (list == "none") return offload;
  std::string_view rest = list;
  while (true) {
    const std::string_view name = rest.substr(0, rest.find(','));
    if (name == "optimizer")
      offload.optimizer = true;
    else if (name == "params")
      offload.parameters = true;
    else if (name == "activations")
      offload.activations = true;
    else
      throw InputError(
          fmt::format("--offload: found '{}', allowed: none, or some of optimizer, params, activations with commas "
                      "between them",
                      name));
    if (name.size() == rest.size()) return offload;
    rest.remove_prefix(name.size() + 1);
  }
}

int64_t Layout::chunks() const {
  if (own_schedule) return own_schedule->chunks;
  if (chunks_per_rank != 0) return pp * chunks_per_rank;
  const Generator* generator = find_generator(schedule);
  return pp * (generator == nullptr ? 1 : generator->usual_chunks);
}

std::string Layout::zero_text() const {
  return zero_of_ranks.empty() ? fmt::format("{}", zero) : fmt::format("{}", fmt::join(zero_of_ranks, ","));
}

ReduceEvery default_reduce_every(int zero) { return zero >= 2 ? ReduceEvery::Micro : ReduceEvery::Step; }

std::vector<std::string> problems_of(const Layout& layout, const Model& model) {
  std::vector<std::string> problems;
  check_ranks(layout, model, problems);
  std::vector<std::string> of_schedule;
  const bool chunks_are_known = check_schedule(layout, model, of_schedule);
  check_zero(layout, model, chunks_are_known, problems);
  check_reshard(layout, problems);
  check_replicate(layout, problems);
  problems.insert(problems.end(), of_schedule.begin(), of_schedule.end());
  check_batch(layout, problems);
  check_reproducible(layout, problems);
  check_micro_batch_bytes(layout, model, problems);
  check_parameter_bytes(model, problems);
  check_stages(layout, model, chunks_are_known, problems);
  check_recompute(layout, model, problems);
  check_offload(layout, model, problems);
  return problems;
}

}  // namespace shardpipe
