// A measured or simulated timeline as Chrome trace JSON, which Perfetto and chrome://tracing open: a process a rank, a
// thread a track, arrows from the spans that send to the spans that wait for them.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shardpipe {

struct TraceSpan {
  int rank = 0;
  int track_index = 0;                        // order of the rank's tracks; one index has one name
  std::string track;                          // its name
  std::string name;                           // 2F0
  std::string category;                       // forward
  double begin_seconds = 0, end_seconds = 0;  // end >= begin, both finite
  // An arrow runs from the span with flow_out = k to every span with flow_in = k; one whose other end is missing (the
  // run stopped) is left out. At most one span sends k.
  std::optional<uint64_t> flow_out, flow_in;
  nlohmann::ordered_json args = nlohmann::ordered_json::object();  // shown when the span is selected
};

// Strictly valid JSON, for any bytes in the strings. InvariantError: a span that ends before it begins, two senders of
// one flow.
std::string to_chrome_trace(std::span<const TraceSpan> spans, std::string_view run_name);

}  // namespace shardpipe
