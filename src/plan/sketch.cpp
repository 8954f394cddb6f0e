#include "plan/sketch.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "schedules/timing.h"

namespace shardpipe {
namespace {

// A link's time for bytes that each of `members` neighbours sends, as costs_on prices it.
double ring_seconds(const Cluster& cluster, double members, double bytes) {
  if (members <= 1) return 0;
  const auto in_node = static_cast<double>(cluster.devices_in_node);
  const double together = std::max(1.0, std::min(members, in_node));
  const double per_byte =
      together >= members ? cluster.device.link.seconds_per_byte
                          : std::max(cluster.device.link.seconds_per_byte, cluster.between.seconds_per_byte / together);
  return bytes * (members - 1) / members * per_byte;
}

}  // namespace

const Sketcher::Shape& Sketcher::shape_of(const Layout& layout, double recompute_share) {
  const int64_t per_rank = layout.chunks() / layout.pp;
  // Once the pipeline is full, every further micro-batch takes as long as the one before.
  const int64_t timed = std::min(layout.micro_batches(), 2 * layout.pp * std::max<int64_t>(per_rank, 1));
  const auto key = std::tuple(layout.schedule, layout.pp, per_rank, timed, static_cast<int>(100 * recompute_share));
  if (const auto found = shapes_.find(key); found != shapes_.end()) return found->second;

  const PassCosts costs{.forward = 1, .backward_input = 1 + recompute_share, .backward_weight = 1};
  const Schedule schedule = make_schedule(layout.schedule, {.ranks = static_cast<uint16_t>(layout.pp),
                                                            .micro_batches = static_cast<uint16_t>(timed),
                                                            .chunks_per_rank = static_cast<uint16_t>(per_rank),
                                                            .costs = costs});
  const std::vector<PassCosts> of_all{costs};
  const CellTimes times = time_cells(schedule, of_all);
  Shape shape{.micro_batches = static_cast<double>(timed),
              .length = 0,
              .rank_of_chunk = schedule.rank_of_chunk,
              .in_flight = std::vector<int>(schedule.by_rank.size()),
              .deferred = std::vector<int>(schedule.by_rank.size())};
  for (const auto& of_rank : times)
    for (const CellTime& cell : of_rank) shape.length = std::max(shape.length, cell.end);
  shape.length /= static_cast<double>(per_rank) * (3 + recompute_share);
  for (size_t r = 0; r < schedule.by_rank.size(); ++r) {
    int in_flight = 0, deferred = 0;
    for (const Cell& cell : schedule.by_rank[r]) {
      if (cell.pass == Pass::Forward) ++in_flight;
      if (cell.pass == Pass::BackwardInput) ++deferred;
      shape.in_flight[r] = std::max(shape.in_flight[r], in_flight);
      shape.deferred[r] = std::max(shape.deferred[r], deferred);
      if (cell.pass == Pass::BackwardWeight) --deferred;
      if (cell.pass == Pass::Backward || cell.pass == Pass::BackwardWeight) --in_flight;
    }
  }
  return shapes_.emplace(key, std::move(shape)).first->second;
}

const std::vector<Sketcher::Block>& Sketcher::blocks_of(const Layout& layout) {
  const auto key = std::tuple(layout.micro_batch_size, layout.recompute, static_cast<int>(layout.precision));
  if (const auto found = blocks_.find(key); found != blocks_.end()) return found->second;
  const MicroBatchShape shape{layout.micro_batch_size, model_.config.seq_len, layout.precision};
  const std::vector<Recompute> recompute = recompute_of_blocks(layout.recompute, model_);
  std::vector<Block> blocks;
  for (size_t b = 0; b < model_.blocks.size(); ++b) {
    const shardpipe::Block& block = model_.blocks[b];
    const BlockBytes bytes = block_bytes(model_, block, shape, recompute[b]);
    Block& own = blocks.emplace_back();
    own = {.seconds = block_seconds_on(cluster_.device, model_, block, shape, recompute[b]),
           .saved = static_cast<double>(bytes.saved + activation_bytes(model_, shape)),
           .recomputed = static_cast<double>(bytes.recomputed),
           .between = static_cast<double>(bytes.between),
           .workspace = static_cast<double>(bytes.workspace)};
    for (const uint16_t group : block.groups) {
      const auto uses = std::ranges::count_if(
          model_.blocks, [&](const shardpipe::Block& other) { return std::ranges::count(other.groups, group) > 0; });
      (uses > 1 ? own.tied : own.elements) += static_cast<double>(model_.groups[group].elements);
    }
  }
  return blocks_.emplace(key, std::move(blocks)).first->second;
}

Sketch Sketcher::sketch(const Layout& layout) {
  const std::vector<Block>& blocks = blocks_of(layout);
  double forward = 0, again = 0;
  for (const Block& block : blocks) {
    forward += block.seconds.forward;
    again += block.seconds.recompute;
  }
  const Shape& shape = shape_of(layout, again / forward);

  const int64_t chunks = layout.chunks();
  const auto [stages, made] = stages_.try_emplace({chunks, layout.micro_batch_size});
  if (made)
    stages->second =
        balanced_stages(model_, chunks, {layout.micro_batch_size, model_.config.seq_len, layout.precision});

  struct RankSum {
    double seconds = 0, backward = 0, elements = 0, tied = 0;
    double saved = 0, deferred = 0;              // bytes of a micro-batch, over all chunks
    double largest = 0;                          // bytes of a block
    double largest_group = 0, second_group = 0;  // elements
  };
  std::vector<RankSum> ranks(static_cast<size_t>(layout.pp));
  size_t block = 0;
  for (size_t chunk = 0; chunk < static_cast<size_t>(chunks); ++chunk) {
    RankSum& rank = ranks[shape.rank_of_chunk[chunk]];
    for (int64_t i = 0; i < stages->second[chunk]; ++i) {
      const Block& own = blocks[block++];
      const double backward = own.seconds.backward_input + own.seconds.backward_weight + own.seconds.recompute;
      rank.backward += backward;
      rank.seconds += own.seconds.forward + backward;
      rank.saved += own.saved;
      rank.deferred += own.recomputed + own.between;
      rank.largest = std::max(rank.largest, own.recomputed + own.between + own.workspace);
      for (const double group : {own.elements, rank.tied > 0 ? 0 : own.tied}) {
        rank.second_group = std::max(rank.second_group, std::min(rank.largest_group, group));
        rank.largest_group = std::max(rank.largest_group, group);
      }
      rank.elements += own.elements;
      rank.tied = std::max(rank.tied, own.tied);  // kept once, if both its blocks are here
    }
  }

  const auto micro_batches = static_cast<double>(layout.micro_batches());
  const auto dp = static_cast<double>(layout.dp), group = static_cast<double>(layout.shard_group());
  const Residency kept = residency(layout.zero, layout.reduce_every);
  const double of_parameter = static_cast<double>(bytes_of(layout.precision));
  const double masters = layout.precision == DType::Float32 ? 0 : 4;
  const Offload offload = offload_of(layout.offload);
  // Chunks of a rank are taken to be alike.
  const auto per_rank = static_cast<double>(chunks / layout.pp);
  double of_all_ranks = 0;
  for (const RankSum& rank : ranks) of_all_ranks += rank.seconds;
  const double filling = of_all_ranks / static_cast<double>(layout.pp) * (shape.length - shape.micro_batches);
  Sketch worst;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankSum& rank = ranks[r];
    const double elements = rank.elements + rank.tied;
    const double pipeline = rank.seconds * micro_batches + filling;
    const double activations = (rank.saved * shape.in_flight[r] + rank.deferred * shape.deferred[r]) / per_rank;
    const double states =
        elements * (masters + 4 * static_cast<double>(states_)) / (kept.optimizer_sharded ? group : 1);
    const double update = (states * 2 + elements * 4) * (1 / cluster_.device.memory_bytes_per_second) +
                          (offload.optimizer ? states * 2 * cluster_.device.host.seconds_per_byte : 0);
    const double times = layout.reduce_every == ReduceEvery::Micro ? micro_batches : 1;
    const double reduce = times * ring_seconds(cluster_, dp,
                                               elements * static_cast<double>(bytes_of(layout.reduce_dtype)) *
                                                   (kept.optimizer_sharded ? 1 : 2));
    const double gathers = kept.parameters_sharded  ? (layout.reshard_after_forward ? 2 * micro_batches : 1)
                           : kept.optimizer_sharded ? 1
                                                    : 0;
    const double gather = gathers * ring_seconds(cluster_, group, elements * of_parameter);
    // What recurs with every micro-batch hides behind its arithmetic; what comes once, behind the last backward.
    const double hidden = times > 1 || kept.parameters_sharded ? rank.seconds * micro_batches : rank.backward;
    const double exposed = std::max(0.0, reduce + gather - hidden);
    worst.seconds = std::max(worst.seconds, pipeline + exposed + update);

    const double bytes = (offload.parameters ? 0 : elements * of_parameter / (kept.parameters_sharded ? group : 1)) +
                         (kept.parameters_sharded ? (rank.largest_group + rank.second_group) * of_parameter : 0) +
                         elements * 4 / (kept.gradients_sharded ? group : 1) +
                         (kept.gradients_sharded ? (rank.largest_group + rank.second_group) * 4 : 0) +
                         (offload.optimizer ? 0 : states) + (offload.activations ? 0 : activations) + rank.largest;
    worst.bytes = std::max(worst.bytes, bytes);
  }
  return worst;
}

}  // namespace shardpipe
