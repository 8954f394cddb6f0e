// What viewers need of a trace: strict JSON, names and order of the tracks, arrows whose ends lie in their spans.
#include "report/perfetto.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"

namespace shardpipe {
namespace {

using Json = nlohmann::json;

std::vector<Json> events_of(const std::string& text, const std::string& phase) {
  std::vector<Json> result;
  const Json trace = Json::parse(text);
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == phase) result.push_back(event);
  return result;
}

TraceSpan span(int rank, int track, double begin, double end) {
  return {.rank = rank,
          .track_index = track,
          .track = "track " + std::to_string(track),
          .name = "x",
          .category = "c",
          .begin_seconds = begin,
          .end_seconds = end};
}

TEST(Perfetto, NoSpansIsAValidTrace) {
  const Json json = Json::parse(to_chrome_trace({}, "empty"));
  EXPECT_EQ(json["traceEvents"], Json::array());
  EXPECT_EQ(json["otherData"]["run"], "empty");
}

TEST(Perfetto, AnyBytesInAnyStringAreValidJson) {
  const std::string strange =
      "quote \" backslash \\ newline \n tab \t control \x01 nul " + std::string(1, '\0') + " é 漢 end";
  const std::string broken = "\xFF\xFE lone \x80 cut \xE6\xBC";
  TraceSpan both = span(0, 0, 0, 1);
  both.track = both.name = both.category = strange;
  both.args = {{strange, strange}, {broken, broken}, {"nan", std::numeric_limits<double>::quiet_NaN()}};
  TraceSpan other = span(1, 0, 0, 1);
  other.track = other.name = other.category = broken;
  const std::string text = to_chrome_trace(std::vector{both, other}, strange + broken);
  const std::vector<Json> slices = events_of(text, "X");
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0]["name"], strange);
  EXPECT_EQ(slices[0]["cat"], strange);
  EXPECT_EQ(slices[0]["args"][strange], strange);
  EXPECT_TRUE(slices[0]["args"]["nan"].is_null());
  EXPECT_NE(slices[1]["name"].get<std::string>().find(" lone "), std::string::npos);
}

TEST(Perfetto, TimesAreMicrosecondsAndNeverNegative) {
  const std::vector<Json> slices = events_of(
      to_chrome_trace(std::vector{span(0, 0, 0.001, 0.0025), span(0, 0, 0.0025, 0.0025), span(0, 0, 0.1, 0.3)}, ""),
      "X");
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0]["ts"].get<double>(), 1000);
  EXPECT_EQ(slices[0]["dur"].get<double>(), 1500);
  EXPECT_EQ(slices[1]["ts"].get<double>(), 2500);
  EXPECT_EQ(slices[1]["dur"].get<double>(), 0);
  EXPECT_EQ(slices[2]["ts"].get<double>(), 100'000);
  EXPECT_EQ(slices[2]["dur"].get<double>(), 200'000);
}

TEST(Perfetto, SpansThatShareABorderDoNotOverlapByRounding) {
  std::vector<TraceSpan> spans;
  for (int i = 0; i < 1000; ++i) spans.push_back(span(0, 0, 0.1 * i / 3, 0.1 * (i + 1) / 3));
  const std::vector<Json> slices = events_of(to_chrome_trace(spans, ""), "X");
  const auto nanoseconds = [](const Json& value) { return std::llround(value.get<double>() * 1e3); };
  for (size_t i = 1; i < slices.size(); ++i)
    ASSERT_EQ(nanoseconds(slices[i - 1]["ts"]) + nanoseconds(slices[i - 1]["dur"]), nanoseconds(slices[i]["ts"])) << i;
}

TEST(Perfetto, ARankIsAProcessAndATrackAThreadInTheirOrder) {
  const std::vector<TraceSpan> spans = {span(1, 3, 0, 1), span(0, 0, 0, 1), span(1, 0, 0, 1), span(1, 3, 1, 2)};
  std::map<std::pair<int, std::string>, Json> processes;
  std::map<std::tuple<int, int, std::string>, Json> threads;
  for (const Json& event : events_of(to_chrome_trace(spans, ""), "M")) {
    const std::string name = event["name"];
    const int pid = event["pid"], tid = event["tid"];
    const bool is_new = name.starts_with("process") ? processes.try_emplace({pid, name}, event["args"]).second
                                                    : threads.try_emplace({pid, tid, name}, event["args"]).second;
    EXPECT_TRUE(is_new) << event;
  }
  EXPECT_EQ(processes.size(), 4u);
  EXPECT_EQ((processes[{1, "process_name"}]), (Json{{"name", "rank 1"}}));
  EXPECT_EQ((processes[{1, "process_sort_index"}]), (Json{{"sort_index", 1}}));
  EXPECT_EQ(threads.size(), 6u);
  EXPECT_EQ((threads[{1, 3, "thread_name"}]), (Json{{"name", "track 3"}}));
  EXPECT_EQ((threads[{1, 3, "thread_sort_index"}]), (Json{{"sort_index", 3}}));
}

// An arrow from a sender to a receiver at these times: it must run forward, its ends within the spans.
void expect_arrow(double src_begin, double src_end, double dst_begin, double dst_end) {
  std::vector<TraceSpan> spans = {span(0, 1, src_begin, src_end), span(1, 2, dst_begin, dst_end)};
  spans[0].flow_out = 17;
  spans[1].flow_in = 17;
  const std::string text = to_chrome_trace(spans, "");
  const auto starts = events_of(text, "s"), ends = events_of(text, "f");
  ASSERT_EQ(starts.size(), 1u);
  ASSERT_EQ(ends.size(), 1u);
  for (const char* key : {"id", "name", "cat"}) EXPECT_EQ(starts[0][key], ends[0][key]);
  EXPECT_EQ(ends[0]["bp"], "e");
  EXPECT_EQ(starts[0]["pid"], 0);
  EXPECT_EQ(starts[0]["tid"], 1);
  EXPECT_EQ(ends[0]["pid"], 1);
  EXPECT_EQ(ends[0]["tid"], 2);
  const double leaves = starts[0]["ts"], arrives = ends[0]["ts"];
  EXPECT_GE(leaves, src_begin * 1e6);
  EXPECT_LE(leaves, src_end * 1e6);
  EXPECT_GE(arrives, dst_begin * 1e6);
  EXPECT_LE(arrives, dst_end * 1e6);
  EXPECT_LE(leaves, arrives);
}

TEST(Perfetto, ArrowsLieInTheirSpansAndRunForward) {
  expect_arrow(1, 2, 3, 4);    // one after the other
  expect_arrow(1, 2, 2, 3);    // at once
  expect_arrow(2, 3, 1, 3);    // the receiver waited
  expect_arrow(2, 4, 1, 2.5);  // the sender returned late
  expect_arrow(1, 1, 1, 1);    // no time at all
}

TEST(Perfetto, OneSenderMayHaveSeveralReceivers) {
  std::vector<TraceSpan> spans = {span(0, 0, 0, 1), span(1, 0, 1, 2), span(2, 0, 1, 2)};
  spans[0].flow_out = spans[1].flow_in = spans[2].flow_in = 5;
  const std::string text = to_chrome_trace(spans, "");
  const auto starts = events_of(text, "s"), ends = events_of(text, "f");
  ASSERT_EQ(starts.size(), 2u);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_NE(starts[0]["id"], starts[1]["id"]) << "viewers pair ends by id";
}

TEST(Perfetto, AnArrowWithoutItsOtherEndIsLeftOut) {
  std::vector<TraceSpan> spans = {span(0, 0, 0, 1), span(1, 0, 0, 1)};
  spans[0].flow_out = 1;
  spans[1].flow_in = 2;
  const std::string text = to_chrome_trace(spans, "");
  EXPECT_TRUE(events_of(text, "s").empty());
  EXPECT_TRUE(events_of(text, "f").empty());
  EXPECT_EQ(events_of(text, "X").size(), 2u);
}

TEST(Perfetto, WhatCannotBeATimelineIsRefused) {
  EXPECT_THROW(to_chrome_trace(std::vector{span(0, 0, 1, 0.5)}, ""), InvariantError);
  EXPECT_THROW(to_chrome_trace(std::vector{span(0, 0, std::numeric_limits<double>::quiet_NaN(), 1)}, ""),
               InvariantError);
  std::vector<TraceSpan> senders = {span(0, 0, 0, 1), span(1, 0, 0, 1)};
  senders[0].flow_out = senders[1].flow_out = 1;
  EXPECT_THROW(to_chrome_trace(senders, ""), InvariantError);
}

}  // namespace
}  // namespace shardpipe
