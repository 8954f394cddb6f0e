#include "train/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "train/trainer.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(BytesIn, ReadsPowersOfTenAndOfTwo) {
  EXPECT_EQ(bytes_in("1"), 1);
  EXPECT_EQ(bytes_in("2500000000"), 2'500'000'000);
  EXPECT_EQ(bytes_in("2500000000B"), 2'500'000'000);
  EXPECT_EQ(bytes_in("2.5GB"), 2'500'000'000);
  EXPECT_EQ(bytes_in("2.5G"), 2'500'000'000);
  EXPECT_EQ(bytes_in("3kB"), 3000);
  EXPECT_EQ(bytes_in("3KiB"), 3072);
  EXPECT_EQ(bytes_in("8GiB"), uint64_t{8} << 30);
  EXPECT_EQ(bytes_in("1.5MiB"), 3u << 19);
  EXPECT_EQ(bytes_in("2TiB"), uint64_t{2} << 40);
  EXPECT_EQ(bytes_in("none"), std::numeric_limits<uint64_t>::max());
}

TEST(BytesIn, KnowsNoOtherText) {
  for (const char* text : {"", "GB", "-1", "0", "0.1", "1x", "1 GB", "1GBs", "1Gi B", "1iB", "1kk", "nan", "inf", "1e9",
                           "99999999999TB", "None"})
    EXPECT_EQ(bytes_in(text), std::nullopt) << text;
}

RunConfig config_of(const Layout& layout) {
  RunConfig config;
  config.model = model_preset("gpt2-10m");
  config.layout = layout;
  return config;
}

uint64_t arena_of(const RunConfig& config) {
  const Model model = make_model(config.model);
  return largest_arena(make_step(model, config.layout, 2));
}

// The message, or "fits".
std::string outcome(const RunConfig& config) {
  const Model model = make_model(config.model);
  try {
    require_memory_limit(config, make_step(model, config.layout, 2));
  } catch (const InputError& error) {
    return error.what();
  }
  return "fits";
}

TEST(MemoryLimit, IsTheArenaToTheByte) {
  RunConfig config =
      config_of({.pp = 2, .dp = 2, .zero = 3, .micro_batch_size = 2, .global_batch_size = 32, .stages = {}});
  const uint64_t arena = arena_of(config);
  config.memory_limit = fmt::format("{}", arena);
  EXPECT_EQ(outcome(config), "fits");
  config.memory_limit = fmt::format("{}", arena - 1);
  EXPECT_THAT(outcome(config), AllOf(HasSubstr("--memory-limit " + config.memory_limit), HasSubstr("pipeline rank"),
                                     HasSubstr("activations"), HasSubstr("what fits: --recompute")));
  config.memory_limit = "none";
  EXPECT_EQ(outcome(config), "fits");
}

// What is offered first, taken, is accepted.
TEST(MemoryLimit, TheNearestLayoutFits) {
  RunConfig config = config_of(
      {.dp = 2, .zero = 0, .schedule = "gpipe", .micro_batch_size = 4, .global_batch_size = 64, .stages = {}});
  RunConfig less = config;
  less.layout.recompute = "full";
  config.memory_limit = less.memory_limit = fmt::format("{}", arena_of(less));
  EXPECT_THAT(outcome(config), HasSubstr("what fits: --recompute full ("));
  EXPECT_EQ(outcome(less), "fits");
}

TEST(MemoryLimit, ChangesAreCombinedWhereOneIsNotEnough) {
  RunConfig config = config_of({.pp = 2,
                                .dp = 2,
                                .zero = 0,
                                .schedule = "gpipe",
                                .micro_batch_size = 8,
                                .global_batch_size = 128,
                                .stages = {}});
  RunConfig less = config;
  less.layout.recompute = "full";
  less.layout.schedule = "1f1b";
  config.memory_limit = fmt::format("{}", arena_of(less));
  ASSERT_LT(arena_of(less), arena_of(config) / 4);
  EXPECT_THAT(outcome(config), AllOf(HasSubstr("what fits: --"), Not(HasSubstr("no layout"))));
}

TEST(MemoryLimit, ThatNothingFitsIsSaid) {
  RunConfig config = config_of({.global_batch_size = 8, .stages = {}});
  config.memory_limit = "1kB";
  EXPECT_THAT(outcome(config), HasSubstr("no layout within a few changes fits"));
}

}  // namespace
}  // namespace shardpipe
