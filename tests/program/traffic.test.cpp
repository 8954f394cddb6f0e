// Bytes on the wire against the closed forms, for each rank and kind of communication.
#include "program/traffic.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "program/cases.h"

namespace shardpipe {
namespace {

// What a rank holds: of each block the parameter groups that it uses, and each group once.
struct Held {
  uint64_t bytes_by_use = 0, bytes_by_group = 0;  // 4Ψ with padding
};

Held held(const StepShape& shape, int64_t rank) {
  Held sum;
  std::vector<bool> seen(shape.model->groups.size(), false);
  for (const uint16_t b : blocks_of_rank(shape, rank))
    for (const uint16_t group : shape.model->blocks[b].groups) {
      const uint64_t bytes = 4 * shape.shards_of(group).padded_elements();
      sum.bytes_by_use += bytes;
      if (!seen[group]) sum.bytes_by_group += bytes;
      seen[group] = true;
    }
  return sum;
}

// Of block b's parameter groups, where it lives on this rank.
uint64_t bytes_of_block(const StepShape& shape, int64_t rank, uint16_t b) {
  uint64_t bytes = 0;
  for (const uint16_t mine : blocks_of_rank(shape, rank))
    if (mine == b)
      for (const uint16_t group : shape.model->blocks[b].groups) bytes += 4 * shape.shards_of(group).padded_elements();
  return bytes;
}

TEST(Traffic, EqualsTheClosedFormOnEveryRankOfTheGrid) {
  for_each_case(
      [&](const Case& c) {
        if (testing::Test::HasFailure()) return;
        const StepShape shape = c.shape();
        const Layout& l = c.layout;
        const Program program = compile(shape);
        const auto n = static_cast<uint64_t>(l.dp), m = static_cast<uint64_t>(l.micro_batches());
        const auto copies = static_cast<uint64_t>(l.replicate), s = n / copies;  // S = N/R replicas share a copy
        const auto share = [&](uint64_t bytes) { return bytes / s * (s - 1); };  // Ψ(S-1)/S
        const uint64_t reductions = l.reduce_every == ReduceEvery::Micro ? m : 1;
        for (int64_t r = 0; r < l.pp; ++r) {
          const Held psi = held(shape, r);
          Traffic expected;
          // Terms are sent rounded, their sums are not.
          const uint64_t exact = l.reproducible ? 2 : 1;  // eight bytes an element instead of four
          const uint64_t terms = exact * share(psi.bytes_by_use) / 4 * bytes_of(l.reduce_dtype);
          if (l.zero == 0)
            expected.all_reduce = reductions * (terms + exact * share(psi.bytes_by_use));
          else
            expected.reduce_scatter = reductions * terms;
          if (l.zero > 0) expected.all_reduce = reductions * 2 * exact * (psi.bytes_by_use / s / copies * (copies - 1));
          const auto gathered = [&](uint64_t fp32) { return share(fp32) / 4 * bytes_of(l.precision); };
          if (l.zero == 1 || l.zero == 2) expected.all_gather = gathered(psi.bytes_by_group);
          // For each forward and each input gradient; a weight gradient needs no parameters, and the embedding has
          // nothing else where backwards are split.
          uint64_t split = 0;  // micro-batches
          for (const std::vector<Cell>& cells : shape.schedule.by_rank)
            split += static_cast<uint64_t>(std::ranges::count_if(
                cells, [](const Cell& cell) { return cell.pass == Pass::BackwardWeight && cell.chunk == 0; }));
          const uint64_t embedding = split * gathered(bytes_of_block(shape, r, 0));
          if (l.zero == 3)
            expected.all_gather =
                l.reshard_after_forward ? 2 * m * gathered(psi.bytes_by_use) - embedding : gathered(psi.bytes_by_group);
          uint64_t boundaries = 0;  // a forward to each next chunk elsewhere, a gradient to each one before
          const std::vector<uint16_t>& rank_of = shape.schedule.rank_of_chunk;
          for (size_t chunk = 0; chunk + 1 < rank_of.size(); ++chunk)
            if (rank_of[chunk] != rank_of[chunk + 1]) boundaries += (rank_of[chunk] == r) + (rank_of[chunk + 1] == r);
          expected.send = boundaries * m * static_cast<uint64_t>(shape.micro_batch.tokens() * c.model.config.hidden) *
                          bytes_of(l.precision);
          // In a V the embedding and the head are on one rank, and add up there.
          if (c.model.config.tied_embeddings && rank_of.front() != rank_of.back() &&
              (rank_of.front() == r || rank_of.back() == r)) {
            const uint64_t tied = 4 * shape.shards_of(c.model.blocks[0].groups.back()).padded_elements();
            const uint64_t elements = (l.zero == 0 ? tied : tied / s) / 4;
            expected.tied = exact * 2 * 4 * ((elements + 1) / 2);  // 2Ψ(2-1)/2: an all-reduce of two
          }
          // A square for each shard, a loss and its tokens for each micro-batch, and whether to stop.
          // An exact square is four words, and there is a count of what was out of range.
          const uint64_t squares = c.model.groups.size() * n;
          const uint64_t slots = (l.reproducible ? 4 * squares + 1 : squares) + 2 * n * m + 1,
                         ranks = static_cast<uint64_t>(l.ranks());
          expected.scalars = 2 * 8 * ((slots + ranks - 1) / ranks) * (ranks - 1);
          const Traffic found = traffic(program, static_cast<uint16_t>(r), n, copies);
          // Parameters come for each reader, once more for the update, and go back once; states and masters come and
          // go.
          const auto kept = [&](uint64_t whole) { return whole / (l.zero == 3 ? s : 1) / 4 * bytes_of(l.precision); };
          const uint64_t readers = l.zero == 3 && !l.reshard_after_forward
                                       ? psi.bytes_by_group
                                       : 2 * m * psi.bytes_by_use - split * bytes_of_block(shape, r, 0);
          if (shape.offload.parameters) {
            expected.fetched = kept(readers) + kept(psi.bytes_by_group);
            expected.offloaded = kept(psi.bytes_by_group);
          }
          const uint64_t states = (l.precision == DType::Float32 ? 2 : 3) * psi.bytes_by_group / (l.zero >= 1 ? s : 1);
          if (shape.offload.optimizer) {
            expected.fetched += states;
            expected.offloaded += states;
          }
          if (shape.offload.activations) {  // as many as leave come back
            const uint64_t activations = found.offloaded - expected.offloaded;
            expected.fetched += activations;
            expected.offloaded += activations;
          }
          EXPECT_TRUE(found == expected) << c.name << ", rank " << r << ": send " << found.send << " of "
                                         << expected.send << ", all-gather " << found.all_gather << " of "
                                         << expected.all_gather << ", reduce-scatter " << found.reduce_scatter << " of "
                                         << expected.reduce_scatter << ", all-reduce " << found.all_reduce << " of "
                                         << expected.all_reduce << ", tied " << found.tied << " of " << expected.tied
                                         << ", scalars " << found.scalars << " of " << expected.scalars << ", fetched "
                                         << found.fetched << " of " << expected.fetched << ", offloaded "
                                         << found.offloaded << " of " << expected.offloaded;
        }
      },
      3);
}

// The figures that the ZeRO paper states for one micro-batch: 2Ψ for stages 0 to 2, 3Ψ for stage 3 (section 7).
TEST(Traffic, OfOneMicroBatchIsTwoOrThreeTimesTheParameters) {
  const Model model = tiny_model(2, false);
  for (const int zero : {0, 1, 2, 3})
    for (const int64_t dp : {1, 2, 4, 7}) {
      const StepShape shape = step_shape(model, tiny_layout("1f1b", 1, 1, zero, ReduceEvery::Step, dp), 2);
      const Traffic sent = traffic(compile(shape), 0, static_cast<uint64_t>(dp));
      uint64_t padded = 0;
      for (uint16_t g = 0; g < model.groups.size(); ++g) padded += 4 * shape.shards_of(g).padded_elements();
      const auto n = static_cast<uint64_t>(dp);
      EXPECT_EQ(sent.all_reduce + sent.all_gather + sent.reduce_scatter, (zero == 3 ? 3 : 2) * (padded / n * (n - 1)))
          << "zero " << zero << ", dp " << dp;
    }
}

}  // namespace
}  // namespace shardpipe
