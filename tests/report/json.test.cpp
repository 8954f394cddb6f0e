// metrics.jsonl and summary.json: what stands there is what was measured, and any strict parser reads it.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "report/metrics.h"
#include "report/summary.h"

namespace shardpipe {
namespace {

using Json = nlohmann::json;

std::set<std::string> keys(const Json& object) {
  std::set<std::string> result;
  for (const auto& [key, value] : object.items()) result.insert(key);
  return result;
}

TEST(Metrics, AStepIsOneLineThatReadsBackTheSame) {
  const StepMetrics metrics{.step = 7,
                            .loss = 0.1,
                            .grad_norm = 1.0 / 3,
                            .lr = 3e-4,
                            .tokens = 1 << 20,
                            .seconds = 0.5,
                            .tokens_per_second = 2097152,
                            .mfu = 0.41,
                            .peak_bytes = {1, uint64_t{1} << 63},
                            .wire_bytes = {{"all_gather", 12}, {"reduce_scatter", 8}},
                            .skipped = true,
                            .val_loss = 5.25};
  const std::string line = to_json_line(metrics);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Json json = Json::parse(line);
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["loss"].get<double>(), 0.1);
  EXPECT_EQ(json["grad_norm"].get<double>(), 1.0 / 3);  // to the last bit
  EXPECT_EQ(json["lr"].get<double>(), 3e-4);
  EXPECT_EQ(json["tokens"], 1 << 20);
  EXPECT_EQ(json["mfu"].get<double>(), 0.41);
  EXPECT_EQ(json["peak_bytes"], (Json{1, uint64_t{1} << 63}));
  EXPECT_EQ(json["wire_bytes"], (Json{{"all_gather", 12}, {"reduce_scatter", 8}}));
  EXPECT_EQ(json["skipped"], true);
  EXPECT_EQ(json["val_loss"].get<double>(), 5.25);
}

TEST(Metrics, EveryLineHasEveryKey) {
  const Json empty = Json::parse(to_json_line({}));
  const Json full =
      Json::parse(to_json_line({.mfu = 0.5, .peak_bytes = {1}, .wire_bytes = {{"all_reduce", 1}}, .val_loss = 1}));
  EXPECT_EQ(keys(empty), keys(full));
  EXPECT_TRUE(empty["mfu"].is_null());
  EXPECT_TRUE(empty["val_loss"].is_null());
  EXPECT_EQ(empty["peak_bytes"], Json::array());
  EXPECT_EQ(empty["wire_bytes"], Json::object());
}

TEST(Metrics, NumbersThatAreNotFiniteAreNull) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const Json json =
      Json::parse(to_json_line({.loss = nan, .grad_norm = infinity, .lr = -infinity, .mfu = nan, .val_loss = nan}));
  for (const char* key : {"loss", "grad_norm", "lr", "mfu", "val_loss"}) EXPECT_TRUE(json[key].is_null()) << key;
}

TEST(Summary, HasWhatWasMeasured) {
  Summary summary{.steps = 100,
                  .tokens = 6400,
                  .final_loss = 2.5,
                  .val_loss = 2.75,
                  .params_digest = "00112233445566778899aabbccddeeff",
                  .skipped_steps = 2,
                  .peak_bytes = {10, 20},
                  .planned_peak_bytes = {10, 20},
                  .wire_bytes = {{"all_gather", 64}},
                  .store_bytes = {7, 8},
                  .fetched_bytes = 9,
                  .offloaded_bytes = 5,
                  .cpu_seconds = 3.5,
                  .seconds = 2,
                  .interrupted = true};
  summary.layout = {{"pp", 2}, {"schedule", "1f1b"}};
  const std::string text = to_json(summary);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(Json::parse(text), (Json{{"steps", 100},
                                     {"tokens", 6400},
                                     {"final_loss", 2.5},
                                     {"val_loss", 2.75},
                                     {"params_digest", "00112233445566778899aabbccddeeff"},
                                     {"skipped_steps", 2},
                                     {"peak_bytes", {10, 20}},
                                     {"planned_peak_bytes", {10, 20}},
                                     {"wire_bytes", {{"all_gather", 64}}},
                                     {"store_bytes", {7, 8}},
                                     {"fetched_bytes", 9},
                                     {"offloaded_bytes", 5},
                                     {"cpu_seconds", 3.5},
                                     {"seconds", 2.0},
                                     {"interrupted", true},
                                     {"layout", {{"pp", 2}, {"schedule", "1f1b"}}}}));
}

TEST(Summary, BytesThatAreNoUtf8DoNotBreakIt) {
  Summary summary{.final_loss = std::numeric_limits<double>::quiet_NaN()};
  summary.layout["name"] = "a\"b\\c\n\xFF";
  const Json json = Json::parse(to_json(summary));
  EXPECT_EQ(json["layout"]["name"], "a\"b\\c\n\xEF\xBF\xBD");
  EXPECT_TRUE(json["final_loss"].is_null());
}

}  // namespace
}  // namespace shardpipe
