// dualpipe-v against the schedule that PyTorch's own generator wrote (torch/dualpipev_4rank_10mb.csv).
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "schedules/torch_csv.h"
#include "test_paths.h"

namespace shardpipe {
namespace {

TEST(DualpipeV, IsPyTorchsCellByCell) {
  std::ifstream file(std::string(TEST_DATA_DIR) + "/schedules/torch/dualpipev_4rank_10mb.csv");
  std::stringstream text;
  text << file.rdbuf();
  const Schedule theirs = without_movement(parse_torch_csv(text.str(), "dualpipev_4rank_10mb.csv"));
  const Schedule ours = make_schedule("dualpipe-v", {.ranks = 4, .micro_batches = 10, .chunks_per_rank = 2});
  EXPECT_EQ(ours.rank_of_chunk, theirs.rank_of_chunk);
  ASSERT_EQ(ours.by_rank.size(), theirs.by_rank.size());
  for (size_t rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(ours.by_rank[rank].size(), theirs.by_rank[rank].size()) << "rank " << rank;
    for (size_t i = 0; i < ours.by_rank[rank].size(); ++i)
      EXPECT_EQ(ours.by_rank[rank][i], theirs.by_rank[rank][i])
          << "rank " << rank << ", cell " << i + 1 << ": " << to_string(ours.by_rank[rank][i]) << ", theirs "
          << to_string(theirs.by_rank[rank][i]);
  }
}

}  // namespace
}  // namespace shardpipe
