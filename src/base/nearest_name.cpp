#include "base/nearest_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace shardpipe {
namespace {

// Optimal string alignment: three rows of the edit-distance table, since a swap looks two rows back.
size_t edits(std::string_view from, std::string_view to) {
  std::vector<size_t> before_last(to.size() + 1), last(to.size() + 1), row(to.size() + 1);
  for (size_t j = 0; j <= to.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= from.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[to.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> known) {
  constexpr size_t longest_compared = 64;  // no name is longer; a long argument costs nothing
  if (name.empty() || name.size() > longest_compared) return "";
  const std::string* nearest = nullptr;
  size_t fewest = std::min(std::max<size_t>(2, name.size() / 3), name.size() - 1) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = edits(name, candidate);
    if (distance < fewest) {
      fewest = distance;
      nearest = &candidate;
    }
  }
  if (nearest) return *nearest;
  const auto contains = [&](const std::string& candidate) {
    return name.size() >= 3 && candidate.find(name) != std::string::npos;
  };
  const auto found = std::ranges::find_if(known, contains);
  return found == known.end() ? "" : *found;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> known, std::string_view prefix) {
  const std::string nearest = nearest_name(name, known);
  return nearest.empty() ? "" : fmt::format(" (did you mean '{}{}'?)", prefix, nearest);
}

}  // namespace shardpipe
