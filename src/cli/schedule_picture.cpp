#include "cli/schedule_picture.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace shardpipe::cli {
namespace {

BoxKind kind_of(Pass pass) {
  switch (pass) {
    case Pass::Forward:
      return BoxKind::Forward;
    case Pass::Backward:
      return BoxKind::Backward;
    case Pass::BackwardInput:
      return BoxKind::BackwardInput;
    case Pass::BackwardWeight:
      return BoxKind::BackwardWeight;
  }
  throw InvariantError("a pass without a picture");
}

// "1 rank", "4 ranks"
std::string counted(size_t count, std::string_view what, std::string_view plural_ending) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : plural_ending);
}

// A name out of a file, without what a terminal would obey.
std::string printable(std::string name) {
  std::ranges::replace_if(
      name, [](char c) { return (c >= 0 && c < ' ') || c == '\x7F'; }, '?');
  return name;
}

}  // namespace

Picture picture_of(const Schedule& schedule, const CellTimes& times) {
  const size_t ranks = schedule.by_rank.size();
  std::vector<uint16_t> held(ranks, 0), chunk_of_rank;
  for (const uint16_t rank : schedule.rank_of_chunk) chunk_of_rank.push_back(held[rank]++);
  Picture picture;
  picture.name = printable(schedule.name);
  picture.chunks_of_rank = std::max<uint16_t>(1, std::ranges::max(held));
  picture.title = fmt::format(
      "{}: {}, {}{}", picture.name, counted(ranks, "rank", "s"), counted(schedule.micro_batches, "micro-batch", "es"),
      picture.chunks_of_rank > 1 ? fmt::format(", {} chunks a rank", picture.chunks_of_rank) : "");
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    picture.rows.push_back({.label = fmt::format("rank {}", rank), .rank = rank});
    const std::vector<Cell>& cells = schedule.by_rank[rank];
    BoxPart part = BoxPart::Whole;
    for (size_t i = 0; i < cells.size(); ++i) {
      const bool joined = part == BoxPart::Upper;  // the cell before runs together with this one
      part = joined ? BoxPart::Lower : cells[i].with_next && i + 1 < cells.size() ? BoxPart::Upper : BoxPart::Whole;
      picture.boxes.push_back({.row = rank,
                               .begin = times[rank][i].begin,
                               .end = times[rank][i].end,
                               .kind = kind_of(cells[i].pass),
                               .part = part,
                               .chunk = cells[i].chunk,
                               .chunk_of_rank = chunk_of_rank[cells[i].chunk],
                               .micro_batch = cells[i].micro_batch});
    }
  }
  return picture;
}

}  // namespace shardpipe::cli
