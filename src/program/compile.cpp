#include "program/compile.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "program/check.h"

namespace shardpipe {

StepShape step_shape(const Model& model, const Layout& layout, uint64_t optimizer_states_per_element) {
  StepShape shape{
      .model = &model,
      .layout = layout,
      .schedule =
          layout.own_schedule
              ? *layout.own_schedule
              : make_schedule(layout.schedule, {.ranks = static_cast<uint16_t>(layout.pp),
                                                .micro_batches = static_cast<uint16_t>(layout.micro_batches()),
                                                .chunks_per_rank = static_cast<uint16_t>(layout.chunks() / layout.pp),
                                                .costs = layout.pass_costs}),
      .micro_batch = {layout.micro_batch_size, model.config.seq_len, layout.precision},
      .residency = {},
      .first_block = {},
      .optimizer_states_per_element = optimizer_states_per_element,
      .recompute = recompute_of_blocks(layout.recompute, model),
      .offload = offload_of(layout.offload)};
  for (size_t rank = 0; rank < shape.schedule.by_rank.size(); ++rank)
    shape.residency.push_back(residency(layout.zero_of(rank), layout.reduce_every));
  const std::vector<int64_t> stages =
      layout.stages.empty() ? balanced_stages(model, layout.chunks(), shape.micro_batch) : layout.stages;
  check_invariant(stages.size() == shape.schedule.chunks, "{} stages for {} chunks", stages.size(),
                  shape.schedule.chunks);
  shape.first_block = {0};
  for (const int64_t blocks : stages)
    shape.first_block.push_back(static_cast<uint16_t>(shape.first_block.back() + blocks));
  check_invariant(shape.first_block.back() == model.blocks.size(), "the stages hold {} blocks, the model has {}",
                  shape.first_block.back(), model.blocks.size());
  return shape;
}

StepShape evaluation_shape(const StepShape& training_shape, const Program& training) {
  StepShape shape = training_shape;
  shape.schedule.name += ", forwards only";
  for (std::vector<Cell>& cells : shape.schedule.by_rank) {
    std::erase_if(cells, [](const Cell& cell) { return cell.pass != Pass::Forward; });
    for (Cell& cell : cells) cell.with_next = false;  // the backward that it ran with is gone
  }
  shape.optimizer_states_per_element = 0;
  shape.training = false;
  shape.resident = &training;
  return shape;
}

std::vector<uint16_t> blocks_of_pass(const StepShape& shape, const Cell& cell) {
  std::vector<uint16_t> blocks;
  for (uint16_t b = shape.first_block[cell.chunk]; b < shape.first_block[cell.chunk + 1]; ++b)
    if (cell.pass != Pass::BackwardInput || b > 0) blocks.push_back(b);
  if (cell.pass != Pass::Forward) std::ranges::reverse(blocks);
  return blocks;
}

std::span<const CompilerPass> passes() {
  static constexpr std::array table{
      CompilerPass{"blocks", pass_blocks},       CompilerPass{"transfers", pass_transfers},
      CompilerPass{"recompute", pass_recompute}, CompilerPass{"gather", pass_gather},
      CompilerPass{"exact", pass_exact},         CompilerPass{"reduce", pass_reduce},
      CompilerPass{"tied", pass_tied},           CompilerPass{"round", pass_round},
      CompilerPass{"optimizer", pass_optimizer}, CompilerPass{"offload", pass_offload},
      CompilerPass{"prefetch", pass_prefetch},   CompilerPass{"place_buffers", pass_place_buffers},
      CompilerPass{"order", pass_order},
  };
  return table;
}

Program compile(const StepShape& shape) {
  Program program;
  for (const CompilerPass& pass : passes()) program = pass.run(std::move(program), shape);
  const std::vector<Finding> findings = check(program);
  if (!findings.empty())
    throw InvariantError(fmt::format("the compiled program breaks {} rules; the first: {}: {}", findings.size(),
                                     findings.front().rule, findings.front().where));
  return program;
}

}  // namespace shardpipe
