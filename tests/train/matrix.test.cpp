// Every cell of ZeRO stage × schedule × offload × precision × recompute: none is refused, every pair of values of two
// axes trains, and cells whose bits the layout may not change have the same ones. (All 2,400 train in `shardpipe matrix
// --train`.)
#include "train/matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "support/temporary_folder.h"

namespace shardpipe {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

RunConfig base_of(const std::string& model) {
  RunConfig config;
  config.model = model_preset(model);
  config.layout.pp = config.layout.dp = 2;
  config.layout.micro_batch_size = 1;
  config.layout.global_batch_size = 6;
  config.layout.chunks_per_rank = 0;
  config.steps = 2;
  config.optimizer.lr = 1e-2;
  return config;
}

// Its place on each axis.
std::array<std::string, 5> values_of(const Layout& layout) {
  return {layout.schedule, std::to_string(layout.zero), std::string(to_string(layout.precision)), layout.recompute,
          layout.offload};
}
using Pair = std::tuple<size_t, std::string, size_t, std::string>;  // two axes and a value of each
std::set<Pair> pairs_of(const Layout& layout) {
  const std::array<std::string, 5> values = values_of(layout);
  std::set<Pair> pairs;
  for (size_t a = 0; a < values.size(); ++a)
    for (size_t b = a + 1; b < values.size(); ++b) pairs.insert({a, values[a], b, values[b]});
  return pairs;
}

// A few layouts that have every pair of values of two axes: each is the best of some that have a pair still to come.
std::vector<Layout> with_every_pair(const std::vector<Layout>& all) {
  std::set<Pair> left;
  for (const Layout& layout : all) left.merge(pairs_of(layout));
  std::mt19937 random(1);
  std::vector<Layout> chosen;
  while (!left.empty()) {
    const Layout* best = nullptr;
    size_t most = 0;
    for (int tries = 0; tries < 200 || most == 0; ++tries) {
      const Layout& candidate = all[random() % all.size()];
      size_t gain = 0;
      for (const Pair& pair : pairs_of(candidate)) gain += left.count(pair);
      if (gain > most) most = gain, best = &candidate;
    }
    chosen.push_back(*best);
    for (const Pair& pair : pairs_of(*best)) left.erase(pair);
  }
  return chosen;
}

TEST(Matrix, NoCellIsRefused) {
  for (const char* model : {"gpt2-tiny", "llama-tiny"}) {
    const RunConfig base = base_of(model);
    const MatrixAxes axes;
    const std::vector<Layout> layouts = matrix_layouts(base.layout, axes);
    EXPECT_THAT(layouts, SizeIs(4 * 10 * 5 * 3 * 4));
    EXPECT_THAT(layouts, SizeIs(axes.cells()));
    std::set<std::array<std::string, 5>> different;
    for (const Layout& layout : layouts) {
      different.insert(values_of(layout));
      ASSERT_EQ(matrix_cell(base, layout, false).refused, "") << model << ": " << flags_of_difference({}, layout);
    }
    EXPECT_EQ(different.size(), axes.cells());
  }
}

void train_pairs(const std::string& model) {
  const TemporaryFolder folder;
  RunConfig base = base_of(model);
  base.layout.offload_piece = 5000;
  const std::vector<Layout> layouts = with_every_pair(matrix_layouts(base.layout, {}));
  EXPECT_LE(layouts.size(), 100u);
  std::map<std::string, std::map<std::string, int>> digests;
  int number = 0;
  for (const Layout& layout : layouts) {
    base.offload_to = number++ % 2 == 0 ? "host" : "nvme:" + folder.path().string();
    const MatrixCell cell = matrix_cell(base, layout, true);
    ASSERT_EQ(cell.refused, "") << flags_of_difference({}, layout);
    ++digests[bits_of_cell(layout)][cell.digest];
  }
  EXPECT_THAT(digests, SizeIs(6));  // three precisions, two cadences
  std::set<std::string> all;
  for (const auto& [bits, found] : digests) {
    EXPECT_THAT(found, SizeIs(1)) << model << ", " << bits;
    all.insert(found.begin()->first);
  }
  EXPECT_THAT(all, SizeIs(6));  // and a digest can differ
}
TEST(Matrix, EveryPairOfValuesTrainsWithTheSameBitsGpt2) { train_pairs("gpt2-tiny"); }
TEST(Matrix, EveryPairOfValuesTrainsWithTheSameBitsLlama) { train_pairs("llama-tiny"); }

TEST(Matrix, ARefusedCellHasItsReasonAndTheNearestThatRuns) {
  RunConfig base = base_of("gpt2-tiny");
  base.layout.pp = 4;  // of 6 blocks: no two chunks a rank
  std::vector<MatrixCell> cells;
  for (const Layout& layout : matrix_layouts(base.layout, {})) cells.push_back(matrix_cell(base, layout, false));
  size_t refused = 0;
  for (const MatrixCell& cell : cells) {
    if (cell.refused.empty()) continue;
    ++refused;
    EXPECT_THAT(cell.refused, HasSubstr("found 8 stages, but gpt2-tiny has 6 blocks"));
    const MatrixCell* nearest = nearest_that_runs(cells, cell);
    ASSERT_NE(nearest, nullptr);
    EXPECT_EQ(flags_of_difference(cell.layout, nearest->layout), "--schedule gpipe");
  }
  EXPECT_EQ(refused, 6 * 240u);
  base.memory_limit = "1";
  EXPECT_THAT(matrix_cell(base, base.layout, false).refused, HasSubstr("--memory-limit 1: found"));
}

}  // namespace
}  // namespace shardpipe
