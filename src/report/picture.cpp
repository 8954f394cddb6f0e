#include "report/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "report/picture_style.h"

namespace shardpipe {
namespace {

// +1 where a forward begins, -1 where the last backward part of the same chunk and micro-batch ends.
double peak_micro_batches(const std::vector<const PictureBox*>& passes, uint16_t chunks_of_rank) {
  std::map<std::pair<uint16_t, uint16_t>, double> last_use;
  for (const PictureBox* box : passes) {
    double& last = last_use.try_emplace({box->chunk, box->micro_batch}, box->end).first->second;
    last = std::max(last, box->end);
  }
  std::vector<std::pair<double, int>> changes;  // at one time those that end come before those that begin
  for (const PictureBox* box : passes)
    if (box->kind == BoxKind::Forward) {
      changes.emplace_back(box->begin, +1);
      changes.emplace_back(last_use[{box->chunk, box->micro_batch}], -1);
    }
  std::ranges::sort(changes);
  int held = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, held += change);
  return static_cast<double>(most) / chunks_of_rank;
}

}  // namespace

PictureFigures figures_of(const Picture& picture) {
  PictureFigures figures{.rows = std::vector<RowFigures>(picture.rows.size())};
  std::vector<std::vector<const PictureBox*>> passes(picture.rows.size());
  double first = std::numeric_limits<double>::infinity(), last = -first;
  for (const PictureBox& box : picture.boxes) {
    check_invariant(box.row < picture.rows.size(), "a box in row {} of {}", box.row, picture.rows.size());
    check_invariant(std::isfinite(box.begin) && std::isfinite(box.end) && box.begin <= box.end,
                    "{}: a box from {} to {}", picture.rows[box.row].label, box.begin, box.end);
    if (!is_pass(box.kind) || picture.rows[box.row].thin) continue;
    passes[box.row].push_back(&box);
    first = std::min(first, box.begin);
    last = std::max(last, box.end);
  }
  if (last < first) return figures;
  figures.step = last - first;

  double busy = 0, ranks = 0, longest_span = 0;
  for (size_t row = 0; row < picture.rows.size(); ++row) {
    if (picture.rows[row].thin) continue;
    ranks += 1;
    RowFigures& own = figures.rows[row];
    double until = -std::numeric_limits<double>::infinity();
    for (const PictureBox* box : passes[row]) {  // two that run together count once
      own.busy += std::max(0.0, box->end - std::max(box->begin, until));
      until = std::max(until, box->end);
    }
    if (figures.step > 0) own.idle_share = 1 - own.busy / figures.step;
    own.peak_micro_batches = peak_micro_batches(passes[row], picture.chunks_of_rank);
    figures.peak_micro_batches = std::max(figures.peak_micro_batches, own.peak_micro_batches);
    busy += own.busy;
    if (!passes[row].empty()) longest_span = std::max(longest_span, until - passes[row].front()->begin);
  }
  if (figures.step > 0 && ranks > 0) figures.bubble = 1 - busy / (ranks * figures.step);
  if (longest_span > 0) figures.own_bubble = 1 - busy / (ranks * longest_span);
  return figures;
}

std::string short_number(double number) {
  if (std::abs(number) >= 999.95) return fmt::format("{:.0f}", number);
  std::string text = fmt::format("{:.4g}", number);
  return text == "-0" ? "0" : text;
}

std::string percent(double share) {
  const std::string text = fmt::format("{:.1f} %", 100 * share);
  return text == "-0.0 %" ? "0.0 %" : text;
}

std::string in_words(const Picture& picture, const PictureFigures& figures) {
  size_t ranks = 0, fullest = 0;
  for (size_t row = 0; row < picture.rows.size(); ++row) {
    ranks += picture.rows[row].thin ? 0 : 1;
    if (figures.rows[row].peak_micro_batches > figures.rows[fullest].peak_micro_batches) fullest = row;
  }
  const bool equal = std::ranges::all_of(picture.rows, [&](const PictureRow& row) {
    const RowFigures& own = figures.rows[static_cast<size_t>(&row - picture.rows.data())];
    return row.thin || own.peak_micro_batches == figures.peak_micro_batches;
  });
  std::string text = fmt::format(
      "Each row is a rank{}, each box a pass over one micro-batch, and time runs to the right. "
      "Of the step's {} {} the ranks wait {}: the bubble.",
      ranks < picture.rows.size() ? " and, thin, what its other lanes do" : "", short_number(figures.step),
      picture.unit, percent(figures.bubble));
  if (figures.bubble - figures.own_bubble > 5e-4)
    text += fmt::format(" It is {} where a rank need not wait for the others at the ends of a step.",
                        percent(figures.own_bubble));
  if (ranks > 0 && figures.peak_micro_batches > 0)
    text += fmt::format(" {} the activations of {} micro-batch{} at once{}.",
                        equal ? (ranks == 1 ? std::string("The rank holds") : std::string("Every rank holds at most"))
                              : fmt::format("Rank {} holds", picture.rows[fullest].rank),
                        short_number(figures.peak_micro_batches), figures.peak_micro_batches == 1 ? "" : "es",
                        equal ? "" : ", the most of all");
  return text;
}

std::vector<TraceSpan> trace_spans(const Picture& picture, double seconds_per_unit) {
  std::map<uint32_t, int> tracks_of_rank;
  std::vector<int> track(picture.rows.size());
  for (size_t row = 0; row < picture.rows.size(); ++row) track[row] = 2 * tracks_of_rank[picture.rows[row].rank]++;
  const double first = first_begin(picture);
  std::vector<TraceSpan> spans;
  for (const PictureBox& box : picture.boxes) {
    const PictureRow& row = picture.rows[box.row];
    // Spans of one track must not cross: of two that run together the second has a track of its own.
    const bool beside = box.part == BoxPart::Lower;
    const KindStyle& style = style_of(box.kind);
    const bool numbered = box.micro_batch != no_micro_batch;
    TraceSpan span{.rank = static_cast<int>(row.rank),
                   .track_index = track[box.row] + (beside ? 1 : 0),
                   .track = beside ? row.label + ", run together" : row.label,
                   .name = numbered ? fmt::format("{} {}", style.letter, box.micro_batch) : std::string(style.name),
                   .category = std::string(style.name),
                   .begin_seconds = (box.begin - first) * seconds_per_unit,
                   .end_seconds = (box.end - first) * seconds_per_unit};
    if (numbered) span.args = {{"chunk", box.chunk}, {"micro_batch", box.micro_batch}};
    if (box.part != BoxPart::Whole) span.args["runs_together"] = true;
    spans.push_back(std::move(span));
  }
  return spans;
}

}  // namespace shardpipe
