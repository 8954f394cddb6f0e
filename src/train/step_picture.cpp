#include "train/step_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "program/text.h"

namespace shardpipe {
namespace {

BoxKind kind_of(Kind kind) {
  switch (kind) {
    case Kind::Forward:
      return BoxKind::Forward;
    case Kind::Recompute:
      return BoxKind::Recompute;
    case Kind::Backward:
      return BoxKind::Backward;
    case Kind::BackwardInput:
      return BoxKind::BackwardInput;
    case Kind::BackwardWeight:
      return BoxKind::BackwardWeight;
    case Kind::Send:
    case Kind::Receive:
      return BoxKind::Transfer;
    case Kind::Unshard:
    case Kind::Reduce:
    case Kind::SumTied:
      return BoxKind::Collective;
    default:
      return BoxKind::Other;
  }
}

uint16_t chunk_of(uint16_t block, std::span<const uint16_t> first_block) {
  const auto after = std::ranges::upper_bound(first_block, block);
  return static_cast<uint16_t>(after - first_block.begin() - 1);
}

// One rank's rows and boxes are added below those that there are.
void add_rank(Picture& picture, uint32_t rank, const RankProgram& program, const Timeline& timeline,
              std::span<const uint16_t> first_block, OtherLanes lanes) {
  check_invariant(program.actions.size() == timeline.size(), "rank {}: {} actions, but times of {}", rank,
                  program.actions.size(), timeline.size());
  std::set<uint16_t> chunks;
  std::map<Lane, uint32_t> row_of_lane;
  for (const Action& action : program.actions) {
    if (is_pass(kind_of(action.kind))) chunks.insert(chunk_of(action.index, first_block));
    if (action.lane != Lane::Compute && lanes == OtherLanes::Shown) row_of_lane[action.lane] = 0;
  }
  picture.chunks_of_rank = std::max(picture.chunks_of_rank, static_cast<uint16_t>(std::max<size_t>(chunks.size(), 1)));
  row_of_lane[Lane::Compute] = 0;  // the first of all lanes
  for (auto& [lane, row] : row_of_lane) {
    row = static_cast<uint32_t>(picture.rows.size());
    const bool computes = lane == Lane::Compute;
    picture.rows.push_back({.label = computes ? fmt::format("rank {}", rank) : std::string(to_string(lane)),
                            .rank = rank,
                            .thin = !computes});
  }
  std::map<Lane, size_t> open;  // the newest box of each lane
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    const auto row = row_of_lane.find(action.lane);
    if (row == row_of_lane.end()) continue;
    PictureBox box{.row = row->second,
                   .begin = timeline[i].begin_seconds * 1e3,
                   .end = timeline[i].end_seconds * 1e3,
                   .kind = kind_of(action.kind),
                   .micro_batch = action.micro_batch == none ? no_micro_batch : action.micro_batch};
    if (is_pass(box.kind)) {
      box.chunk = chunk_of(action.index, first_block);
      box.chunk_of_rank = static_cast<uint16_t>(std::distance(chunks.begin(), chunks.find(box.chunk)));
    }
    const auto before = open.find(action.lane);
    if (before != open.end()) {
      PictureBox& last = picture.boxes[before->second];
      const bool joins = is_pass(box.kind) || box.kind == BoxKind::Other;
      if (joins && last.kind == box.kind && last.chunk == box.chunk && last.micro_batch == box.micro_batch) {
        last.end = box.end;
        continue;
      }
    }
    open[action.lane] = picture.boxes.size();
    picture.boxes.push_back(box);
  }
}

}  // namespace

Picture picture_of(const Program& program, std::span<const uint16_t> first_block, std::span<const Timeline> timelines,
                   std::string_view name, OtherLanes lanes) {
  check_invariant(timelines.size() == program.by_pipeline_rank.size(), "timelines of {} ranks, but programs of {}",
                  timelines.size(), program.by_pipeline_rank.size());
  Picture picture{.name = std::string(name), .title = "", .costs = "", .unit = "ms", .rows = {}, .boxes = {}};
  for (uint32_t rank = 0; rank < timelines.size(); ++rank)
    add_rank(picture, rank, program.by_pipeline_rank[rank], timelines[rank], first_block, lanes);
  std::set<uint16_t> micro_batches;
  for (const PictureBox& box : picture.boxes)
    if (box.kind == BoxKind::Forward) micro_batches.insert(box.micro_batch);
  picture.title =
      fmt::format("{}: {} rank{}, {} micro-batch{}", name, timelines.size(), timelines.size() == 1 ? "" : "s",
                  micro_batches.size(), micro_batches.size() == 1 ? "" : "es");
  return picture;
}

}  // namespace shardpipe
