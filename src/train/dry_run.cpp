#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "program/memory.h"
#include "program/traffic.h"
#include "report/table.h"
#include "train/memory_limit.h"
#include "train/run.h"
#include "train/trainer.h"

namespace shardpipe {
namespace {

std::string cadence_table(const RunConfig& config, const Model& model) {
  Table table{.header = {"--reduce-every", "gradient bytes a rank", "reduced a step and rank"}, .rows = {}};
  for (const ReduceEvery cadence : {ReduceEvery::Micro, ReduceEvery::Step}) {
    Layout layout = config.layout;
    layout.reduce_every = cadence;
    const Program program =
        compile(step_shape(model, layout, optimizer_states_per_element(config.optimizer.optimizer)));
    uint64_t gradients = 0, sent = 0;
    for (uint16_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
      const RankMemory held = memory(program.by_pipeline_rank[r]);
      const Traffic bytes =
          traffic(program, r, static_cast<uint64_t>(layout.dp), static_cast<uint64_t>(layout.replicate));
      gradients = std::max(gradients, held.gradients + held.micro_batch_gradients);
      sent = std::max(sent, bytes.reduce_scatter + bytes.all_reduce);
    }
    table.rows.push_back({fmt::format("{}{}", cadence == ReduceEvery::Micro ? "micro" : "step",
                                      cadence == config.layout.reduce_every ? " (this run)" : ""),
                          human_bytes(gradients), human_bytes(sent)});
  }
  return to_text(table);
}

// "0-1", "3": the world ranks of a pipeline rank.
std::string replicas_of(int64_t pipeline_rank, int64_t dp) {
  const int64_t first = pipeline_rank * dp;
  return dp == 1 ? fmt::format("{}", first) : fmt::format("{}-{}", first, first + dp - 1);
}

// "5: embedding…3", "1: head": how many blocks, and the first and the last; a layer by its number.
std::string blocks_of(const Model& model, uint16_t first, uint16_t last) {
  const auto name = [&](const Block& block) {
    return block.kind == BlockKind::Layer ? fmt::format("{}", block.layer) : block.name;
  };
  const std::string from = name(model.blocks[first]);
  return first == last ? fmt::format("1: {}", from)
                       : fmt::format("{}: {}…{}", last - first + 1, from, name(model.blocks[last]));
}

uint64_t elements_of(const Model& model, const std::set<uint16_t>& groups) {
  return std::accumulate(groups.begin(), groups.end(), uint64_t{0},
                         [&](uint64_t sum, uint16_t group) { return sum + model.groups[group].elements; });
}

// A kind of bytes that no rank has is no column.
void drop_columns_of_zeros(Table& table) {
  const std::string zero = human_bytes(0);
  for (size_t column = table.header.size(); column-- > 0;) {
    if (!std::ranges::all_of(table.rows, [&](const auto& row) { return row[column] == zero; })) continue;
    const auto erase = [&](std::vector<std::string>& cells) {
      cells.erase(cells.begin() + static_cast<std::ptrdiff_t>(column));
    };
    erase(table.header);
    for (auto& row : table.rows) erase(row);
  }
}

void print_table(std::string_view title, Table table) {
  drop_columns_of_zeros(table);
  if (table.header.size() > 1) fmt::print("{}\n{}\n", title, to_text(table));
}

}  // namespace

void dry_run(const RunConfig& config) {
  const Model model = make_model(config.model);
  const Step step = make_step(model, config.layout, optimizer_states_per_element(config.optimizer.optimizer));
  const Layout& layout = config.layout;
  const auto dp = static_cast<uint64_t>(layout.dp);

  // Every table is at most about 100 columns wide.
  Table kept{.header = {"ranks", "stage", "blocks", "elements", "parameters", "gradients", "optimizer", "activations",
                        "arena"},
             .rows = {}};
  Table passing{.header = {"ranks", "gathered parameters", "gradients in reduction", "of what is offloaded",
                           "workspace, tokens, scalars", "padding"},
                .rows = {}};
  Table sent{.header = {"ranks", "send", "all-gather", "reduce-scatter", "all-reduce", "scalars"}, .rows = {}};
  Table stored{.header = {"ranks", "kept there", "fetched a step", "written a step"}, .rows = {}};
  std::vector<int64_t> stages;
  uint64_t of_all = 0, stored_by_all = 0;
  for (uint16_t r = 0; r < step.training.by_pipeline_rank.size(); ++r) {
    const RankProgram& program = step.training.by_pipeline_rank[r];
    const RankMemory bytes = memory(program);
    const RankPadding pad = padding(program, model, dp, dp - 1, static_cast<uint64_t>(layout.replicate));
    const Traffic wire = traffic(step.training, r, dp, static_cast<uint64_t>(layout.replicate));
    std::vector<std::string> chunks, blocks;
    std::set<uint16_t> groups;  // one that two blocks use counts once
    for (uint16_t chunk = 0; chunk < step.shape.schedule.chunks; ++chunk) {
      if (step.shape.schedule.rank_of_chunk[chunk] != r) continue;
      const uint16_t first = step.shape.first_block[chunk];
      const auto last = static_cast<uint16_t>(step.shape.first_block[chunk + 1] - 1);
      chunks.push_back(fmt::format("{}", chunk));
      blocks.push_back(blocks_of(model, first, last));
      for (uint16_t b = first; b <= last; ++b)
        groups.insert(model.blocks[b].groups.begin(), model.blocks[b].groups.end());
    }
    const uint64_t arena = std::max(bytes.arena, step.evaluation.by_pipeline_rank[r].arena_bytes);
    of_all += arena * dp;
    stored_by_all += bytes.store * dp;
    const std::string ranks = replicas_of(r, layout.dp);
    kept.rows.push_back({ranks, fmt::format("{}", fmt::join(chunks, ", ")), fmt::format("{}", fmt::join(blocks, "; ")),
                         human_count(static_cast<double>(elements_of(model, groups))), human_bytes(bytes.parameters),
                         human_bytes(bytes.gradients), human_bytes(bytes.optimizer), human_bytes(bytes.activations),
                         human_bytes(arena)});
    passing.rows.push_back({ranks, human_bytes(bytes.gathered), human_bytes(bytes.micro_batch_gradients),
                            human_bytes(bytes.staging), human_bytes(bytes.workspace + bytes.inputs + bytes.scalars),
                            human_bytes(pad.parameters + pad.gradients + pad.optimizer)});
    sent.rows.push_back({ranks, human_bytes(wire.send), human_bytes(wire.all_gather), human_bytes(wire.reduce_scatter),
                         human_bytes(wire.all_reduce + wire.tied), human_bytes(wire.scalars)});
    stored.rows.push_back({ranks, human_bytes(bytes.store), human_bytes(wire.fetched), human_bytes(wire.offloaded)});
  }

  const bool to_files = !offload_folder(config).empty();
  for (uint16_t chunk = 0; chunk < step.shape.schedule.chunks; ++chunk)
    stages.push_back(step.shape.first_block[chunk + 1] - step.shape.first_block[chunk]);
  fmt::print("{}: {} parameters in {} blocks; --stages {}{}\n", config.model.name,
             human_count(static_cast<double>(model.parameters())), model.blocks.size(), fmt::join(stages, ","),
             layout.stages.empty() ? " (balanced)" : "");
  const auto counted = [](int64_t count, const char* what, const char* plural) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : plural);
  };
  fmt::print("{} = pp {} × dp {}{}, ZeRO {}, {}, {}{}; {} of {} × {} tokens a rank\n\n",
             counted(layout.ranks(), "rank", "s"), layout.pp, layout.dp,
             layout.replicate == 1 ? "" : fmt::format(" ({} copies of {})", layout.replicate, layout.shard_group()),
             layout.zero_text(), layout.schedule, to_string(layout.precision),
             (layout.recompute == "none" ? "" : ", recompute " + layout.recompute) +
                 (layout.offload == "none" ? "" : ", offload " + layout.offload) +
                 (layout.reproducible ? ", reproducible" : ""),
             counted(layout.micro_batches(), "micro-batch", "es"), layout.micro_batch_size, config.model.seq_len);
  print_table("What each rank holds: elements of its blocks, peak bytes of each kind, bytes that are allocated", kept);
  print_table("What else it holds for a while, in the same arena", passing);
  print_table("What each rank sends in a step", sent);
  print_table(fmt::format("What each rank keeps in {}",
                          to_files ? "a file of " + offload_folder(config) : "the host's memory, beside its own"),
              stored);
  if (layout.dp > 1) fmt::print("What the cadence of the reduction costs\n{}\n", cadence_table(config, model));
  for (const std::string& warning : warnings_of(config, -1, held_bytes(step))) fmt::print("warning: {}\n", warning);
  require_memory_limit(config, step);
  fmt::print(
      "The program is checked: nothing waits for ever, is read before it is written, or is left out.\n"
      "{} of memory in all{}.\n",
      human_bytes(of_all),
      stored_by_all == 0
          ? ""
          : fmt::format(", and {} {}", human_bytes(stored_by_all), to_files ? "on disk" : "of the host's"));
}

}  // namespace shardpipe
