#include <fmt/format.h>

#include <algorithm>

#include "program/memory.h"
#include "program/traffic.h"
#include "report/table.h"
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
      const Traffic bytes = traffic(program, r, static_cast<uint64_t>(layout.dp));
      gradients = std::max(gradients, held.gradients + held.micro_batch_gradients);
      sent = std::max(sent, bytes.reduce_scatter + bytes.all_reduce);
    }
    table.rows.push_back({fmt::format("{}{}", cadence == ReduceEvery::Micro ? "micro" : "step",
                                      cadence == config.layout.reduce_every ? " (this run)" : ""),
                          human_bytes(gradients), human_bytes(sent)});
  }
  return to_text(table);
}

}  // namespace

void dry_run(const RunConfig& config) {
  const Model model = make_model(config.model);
  const Step step = make_step(model, config.layout, optimizer_states_per_element(config.optimizer.optimizer));
  const Layout& layout = config.layout;
  fmt::print(
      "{}: {} parameters in {} blocks; {} ranks = pp {} × dp {}, ZeRO {}, {}, {} micro-batches of {} × {} tokens a "
      "rank\n\n",
      config.model.name, human_count(static_cast<double>(model.parameters())), model.blocks.size(), layout.ranks(),
      layout.pp, layout.dp, layout.zero, layout.schedule, layout.micro_batches(), layout.micro_batch_size,
      config.model.seq_len);

  Table held{.header = {"ranks", "stage", "blocks", "own parameters", "parameters", "gathered", "gradients",
                        "in reduction", "optimizer", "activations", "other", "padding", "arena"},
             .rows = {}};
  Table sent{.header = {"ranks", "send", "all-gather", "reduce-scatter", "all-reduce", "scalars"}, .rows = {}};
  uint64_t of_all = 0;
  for (uint16_t r = 0; r < step.training.by_pipeline_rank.size(); ++r) {
    const RankMemory bytes = memory(step.training.by_pipeline_rank[r]);
    const RankPadding pad = padding(step.training.by_pipeline_rank[r], model, static_cast<uint64_t>(layout.dp),
                                    static_cast<uint64_t>(layout.dp - 1));
    const uint16_t first = step.shape.first_block[r], last = static_cast<uint16_t>(step.shape.first_block[r + 1] - 1);
    uint64_t parameters = 0;
    std::vector<bool> counted(model.groups.size(), false);
    for (uint16_t b = first; b <= last; ++b)
      for (const uint16_t group : model.blocks[b].groups)
        if (!counted[group]) {
          counted[group] = true;
          parameters += model.groups[group].elements;
        }
    const uint64_t arena = std::max(bytes.arena, step.evaluation.by_pipeline_rank[r].arena_bytes);
    of_all += arena * static_cast<uint64_t>(layout.dp);
    const std::string ranks =
        layout.dp == 1 ? fmt::format("{}", r) : fmt::format("{}-{}", r * layout.dp, (r + 1) * layout.dp - 1);
    held.rows.push_back(
        {ranks, fmt::format("{}", r),
         fmt::format("{} ({} … {})", last - first + 1, model.blocks[first].name, model.blocks[last].name),
         human_count(static_cast<double>(parameters)), human_bytes(bytes.parameters), human_bytes(bytes.gathered),
         human_bytes(bytes.gradients), human_bytes(bytes.micro_batch_gradients), human_bytes(bytes.optimizer),
         human_bytes(bytes.activations), human_bytes(bytes.workspace + bytes.inputs + bytes.scalars),
         human_bytes(pad.parameters + pad.gradients + pad.optimizer), human_bytes(arena)});
    const Traffic traffic_bytes = traffic(step.training, r, static_cast<uint64_t>(layout.dp));
    sent.rows.push_back({ranks, human_bytes(traffic_bytes.send), human_bytes(traffic_bytes.all_gather),
                         human_bytes(traffic_bytes.reduce_scatter),
                         human_bytes(traffic_bytes.all_reduce + traffic_bytes.tied),
                         human_bytes(traffic_bytes.scalars)});
  }
  fmt::print("What each rank holds (peak of each kind; the arena is what is allocated)\n{}\n", to_text(held));
  fmt::print("What each rank sends in a step\n{}\n", to_text(sent));
  if (layout.dp > 1) fmt::print("What the cadence of the reduction costs\n{}\n", cadence_table(config, model));
  for (const std::string& warning : warnings_of(config, -1, held_bytes(step))) fmt::print("warning: {}\n", warning);
  fmt::print(
      "The program is checked: nothing waits for ever, is read before it is written, or is left out. {} of memory in "
      "all.\n",
      human_bytes(of_all));
}

}  // namespace shardpipe
