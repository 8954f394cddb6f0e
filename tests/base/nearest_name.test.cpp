#include "base/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace shardpipe {
namespace {

const std::vector<std::string> flags{"pp", "dp", "zero", "micro-batch-size", "global-batch-size", "lr", "steps"};

TEST(NearestName, FindsANameOneEditAway) {
  EXPECT_EQ(nearest_name("step", flags), "steps");    // left out
  EXPECT_EQ(nearest_name("stepps", flags), "steps");  // doubled
  EXPECT_EQ(nearest_name("zeta", flags), "zero");     // replaced
  EXPECT_EQ(nearest_name("micro_batch_size", flags), "micro-batch-size");
}

TEST(NearestName, CountsASwapOfNeighboursAsOneEdit) { EXPECT_EQ(nearest_name("zreo", flags), "zero"); }

TEST(NearestName, FindsANameThatContainsTheWord) { EXPECT_EQ(nearest_name("batch-size", flags), "micro-batch-size"); }

TEST(NearestName, IsEmptyWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("tensorboard", flags), "");
  EXPECT_EQ(nearest_name("", flags), "");
  EXPECT_EQ(nearest_name("x", flags), "");
  EXPECT_EQ(nearest_name(std::string(100'000, 'p'), flags), "");
  EXPECT_EQ(did_you_mean("tensorboard", flags, "--"), "");
}

TEST(NearestName, SuggestionCarriesThePrefix) {
  EXPECT_EQ(did_you_mean("stepz", flags, "--"), " (did you mean '--steps'?)");
}

}  // namespace
}  // namespace shardpipe
