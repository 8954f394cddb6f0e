// The picture of a measured step says what the program did, in JSON that a strict parser takes.
#include "train/trace.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "equivalence/tiny.h"

namespace shardpipe {
namespace {

using Json = nlohmann::json;

class TraceOfAStep : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int64_t micro_batches = 3, pp = 3, dp = 2;
  TraceOfAStep() {
    RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(pp, dp, 3, micro_batches, ReduceEvery::Micro, GetParam()));
    config.steps = 2;
    step_ = make_step(model_, config.layout, 2);
    const SampleSource samples = random_samples(7, 65);
    const TrainResult result =
        run_training(config, step_, {.train = samples, .held_out = samples, .held_out_samples = 2});
    trace_ = Json::parse(trace_of(step_, result.timelines));
  }
  Model model_ = make_model(tiny_gpt2());
  Step step_;
  Json trace_;
};

TEST_P(TraceOfAStep, HasEachForwardAndBackwardOfEachBlockAndMicroBatchOnce) {
  std::map<std::string, std::map<std::pair<int, std::string>, int>> seen;  // category, (replica, name)
  for (const Json& event : trace_.at("traceEvents"))
    if (event.at("ph") == "X")
      ++seen[event.at("cat").get<std::string>()]
            [{event.at("pid").get<int>() % dp, event.at("name").get<std::string>()}];
  for (const char* kind : {"F", "B"}) {
    const auto& events = seen.at(kind);
    EXPECT_EQ(events.size(), model_.blocks.size() * micro_batches * dp) << kind;
    for (size_t block = 0; block < model_.blocks.size(); ++block)
      for (int64_t m = 0; m < micro_batches; ++m)
        for (int replica = 0; replica < dp; ++replica) {
          const std::string name = fmt::format("{} b{} m{}", kind, block, m);
          ASSERT_TRUE(events.contains({replica, name})) << name << " of replica " << replica;
          EXPECT_EQ(events.at({replica, name}), 1) << name << " of replica " << replica;
        }
  }
}

TEST_P(TraceOfAStep, HasOneEventForEachActionOfEachRank) {
  size_t events = 0, actions = 0;
  for (const Json& event : trace_.at("traceEvents")) events += event.at("ph") == "X" ? 1 : 0;
  for (const RankProgram& rank : step_.training.by_pipeline_rank) actions += rank.actions.size() * dp;
  EXPECT_EQ(events, actions);
}

TEST_P(TraceOfAStep, HasOneArrowForEachMessage) {
  size_t sends = 0, receives = 0;
  std::map<int64_t, Json> leaves, arrives;  // by arrow
  for (const Json& event : trace_.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("cat") == "send") ++sends;
    if (event.at("ph") == "X" && event.at("cat") == "receive") ++receives;
    if (event.at("ph") == "s") {
      EXPECT_TRUE(leaves.emplace(event.at("id"), event).second);
    }
    if (event.at("ph") == "f") {
      EXPECT_TRUE(arrives.emplace(event.at("id"), event).second);
    }
  }
  EXPECT_EQ(sends, static_cast<size_t>(2 * (pp - 1) * micro_batches * dp));
  EXPECT_EQ(receives, sends);
  ASSERT_EQ(leaves.size(), sends);
  ASSERT_EQ(arrives.size(), sends);
  for (const auto& [arrow, from] : leaves) {
    const Json& to = arrives.at(arrow);
    const int src = from.at("pid"), dst = to.at("pid");
    EXPECT_EQ(src % dp, dst % dp) << "arrows stay within a replica";
    EXPECT_EQ(std::abs(src / dp - dst / dp), 1) << "and run between neighbours";
    EXPECT_LE(from.at("ts").get<double>(), to.at("ts").get<double>());
  }
}

TEST_P(TraceOfAStep, HasSpansOfATrackThatDoNotOverlap) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  for (const Json& event : trace_.at("traceEvents"))
    if (event.at("ph") == "X") {
      EXPECT_GE(event.at("ts").get<double>(), 0);
      EXPECT_GE(event.at("dur").get<double>(), 0);
      tracks[{event.at("pid"), event.at("tid")}].emplace_back(event.at("ts"), event.at("dur"));
    }
  EXPECT_GE(tracks.size(), static_cast<size_t>(2 * pp * dp));
  for (auto& [track, spans] : tracks) {
    std::ranges::sort(spans);
    for (size_t i = 1; i < spans.size(); ++i)
      EXPECT_GE(spans[i].first, spans[i - 1].first + spans[i - 1].second - 1e-3) << track.first << " " << track.second;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, TraceOfAStep, testing::Values<std::string>("gpipe", "1f1b"),
                         [](const auto& tested) {
                           return tested.param == "gpipe" ? "Gpipe" : "OneForwardOneBackward";
                         });

}  // namespace
}  // namespace shardpipe
