#include "report/perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "report/json_text.h"

namespace shardpipe {
namespace {

using Json = nlohmann::ordered_json;

// Trace times are microseconds; whole nanoseconds keep borders that two spans share equal, and numbers short.
struct Interval {
  int64_t begin_ns, end_ns;
};
double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

Interval interval_of(const TraceSpan& span) {
  check_invariant(
      std::isfinite(span.begin_seconds) && std::isfinite(span.end_seconds) && span.begin_seconds <= span.end_seconds,
      "rank {} {}: a span from {} to {} seconds", span.rank, span.name, span.begin_seconds, span.end_seconds);
  return {std::llround(span.begin_seconds * 1e9), std::llround(span.end_seconds * 1e9)};
}

Json metadata(const char* what, int rank, int track, Json args) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", std::move(args)}};
}

void add_names(Json& events, std::span<const TraceSpan> spans) {
  std::set<int> ranks;
  std::map<std::pair<int, int>, std::string> tracks;
  for (const TraceSpan& span : spans) {
    ranks.insert(span.rank);
    tracks.try_emplace({span.rank, span.track_index}, span.track);
  }
  for (const int rank : ranks) {
    events.push_back(metadata("process_name", rank, 0, {{"name", fmt::format("rank {}", rank)}}));
    events.push_back(metadata("process_sort_index", rank, 0, {{"sort_index", rank}}));
  }
  for (const auto& [key, name] : tracks) {
    const auto [rank, track] = key;
    events.push_back(metadata("thread_name", rank, track, {{"name", name}}));
    events.push_back(metadata("thread_sort_index", rank, track, {{"sort_index", track}}));
  }
}

void add_arrows(Json& events, std::span<const TraceSpan> spans) {
  std::map<uint64_t, const TraceSpan*> senders;
  for (const TraceSpan& span : spans)
    if (span.flow_out)
      check_invariant(senders.try_emplace(*span.flow_out, &span).second, "rank {} {}: flow {} has another sender",
                      span.rank, span.name, *span.flow_out);
  int64_t arrow = 0;
  for (const TraceSpan& receiver : spans) {
    const auto found = receiver.flow_in ? senders.find(*receiver.flow_in) : senders.end();
    if (found == senders.end()) continue;
    const TraceSpan& sender = *found->second;
    const Interval src = interval_of(sender), dst = interval_of(receiver);
    // Each end lies within its span, where the viewers look for the span to bind to. The arrow runs forward in time
    // even where the receiver waited since before the sender began.
    int64_t leaves = src.begin_ns + (src.end_ns - src.begin_ns) / 2;
    if (leaves > dst.end_ns) leaves = src.begin_ns;
    const int64_t arrives = std::clamp(leaves, dst.begin_ns, dst.end_ns);
    const auto end = [&](const char* phase, const TraceSpan& span, int64_t at_ns) {
      return Json{{"ph", phase},
                  {"id", arrow},
                  {"name", "data"},
                  {"cat", "flow"},
                  {"ts", microseconds(at_ns)},
                  {"pid", span.rank},
                  {"tid", span.track_index}};
    };
    events.push_back(end("s", sender, leaves));
    events.push_back(end("f", receiver, arrives));
    events.back()["bp"] = "e";  // binds to the span around it, not to the next one
    ++arrow;
  }
}

}  // namespace

std::string to_chrome_trace(std::span<const TraceSpan> spans, std::string_view run_name) {
  Json events = Json::array();
  add_names(events, spans);
  for (const TraceSpan& span : spans) {
    const Interval time = interval_of(span);
    events.push_back({{"ph", "X"},
                      {"name", span.name},
                      {"cat", span.category},
                      {"ts", microseconds(time.begin_ns)},
                      {"dur", microseconds(time.end_ns - time.begin_ns)},
                      {"pid", span.rank},
                      {"tid", span.track_index},
                      {"args", span.args}});
  }
  add_arrows(events, spans);
  const Json trace = {
      {"displayTimeUnit", "ms"}, {"otherData", {{"run", run_name}}}, {"traceEvents", std::move(events)}};
  return json_text(trace) + "\n";
}

}  // namespace shardpipe
