#include "schedules/check_passes.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "base/error.h"

namespace shardpipe {
namespace {

using Problems = std::vector<ScheduleProblem>;

std::string_view pass_in_words(Pass pass) {
  constexpr std::array<std::string_view, 4> words{"forward", "backward", "backward's input part",
                                                  "backward's weight part"};
  return words[static_cast<size_t>(pass)];
}

// A cell and where it stands.
struct Place {
  Cell cell;
  int rank, position;
};

class Passes {
 public:
  Passes(const Schedule& schedule, const std::vector<std::vector<int>>& positions)
      : schedule_(schedule), positions_(positions) {}

  Problems check() {
    if (!check_placement()) return std::move(problems_);
    gather_places();
    check_every_micro_batch();
    for (size_t rank = 0; rank < schedule_.by_rank.size(); ++rank) {
      check_accumulation(static_cast<int>(rank));
      check_pairs(static_cast<int>(rank));
    }
    return std::move(problems_);
  }

 private:
  template <typename... Args>
  void problem(std::string rule, int rank, int position, fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back({std::move(rule), rank, position, fmt::format(text, std::forward<Args>(args)...)});
  }
  int rank_of(size_t chunk) const { return schedule_.rank_of_chunk[chunk]; }

  // False: there is no knowing on which rank a cell belongs.
  bool check_placement() {
    const auto ranks = schedule_.by_rank.size();
    if (ranks == 0 || schedule_.chunks == 0 || schedule_.micro_batches == 0 ||
        schedule_.rank_of_chunk.size() != schedule_.chunks) {
      problem("placement", -1, -1,
              "{} ranks, {} chunks, {} micro-batches and the ranks of {} chunks: allowed are one or more of each, and "
              "a rank for each chunk",
              ranks, schedule_.chunks, schedule_.micro_batches, schedule_.rank_of_chunk.size());
      return false;
    }
    std::vector<bool> has_a_chunk(ranks, false);
    bool known = true;
    for (size_t chunk = 0; chunk < schedule_.chunks; ++chunk) {
      if (schedule_.rank_of_chunk[chunk] < ranks) {
        has_a_chunk[schedule_.rank_of_chunk[chunk]] = true;
        continue;
      }
      problem("placement", -1, -1, "chunk {} is on rank {}, but ranks are 0 to {}", chunk, rank_of(chunk), ranks - 1);
      known = false;
    }
    for (size_t rank = 0; rank < ranks; ++rank)
      if (!has_a_chunk[rank]) problem("placement", static_cast<int>(rank), -1, "this rank has no chunk");
    return known;
  }

  // Of the cells that can be what they say, by chunk and micro-batch, then by pass.
  void gather_places() {
    for (size_t r = 0; r < schedule_.by_rank.size(); ++r)
      for (size_t i = 0; i < schedule_.by_rank[r].size(); ++i) {
        const Cell& cell = schedule_.by_rank[r][i];
        const int rank = static_cast<int>(r), position = positions_[r][i];
        if (cell.chunk >= schedule_.chunks)
          problem("placement", rank, position, "{}: chunks are 0 to {}", to_string(cell), schedule_.chunks - 1);
        else if (cell.micro_batch >= schedule_.micro_batches)
          problem("placement", rank, position, "{}: micro-batches are 0 to {}", to_string(cell),
                  schedule_.micro_batches - 1);
        else if (rank_of(cell.chunk) != rank)
          problem("placement", rank, position, "{}: chunk {} is on rank {}", to_string(cell), cell.chunk,
                  rank_of(cell.chunk));
        else
          places_.push_back({cell, rank, position});
      }
    std::ranges::sort(places_, {}, [](const Place& place) {
      return std::tuple(place.cell.chunk, place.cell.micro_batch, place.cell.pass, place.position);
    });
  }

  // Runs of micro-batches that are not there at all are told together: there may be many.
  void check_absent(size_t chunk, int first, int end) {
    if (first + 1 == end)
      problem("once", rank_of(chunk), -1, "micro-batch {} of chunk {} never runs", first, chunk);
    else if (first < end)
      problem("once", rank_of(chunk), -1, "micro-batches {} to {} of chunk {} never run", first, end - 1, chunk);
  }

  void check_every_micro_batch() {
    auto place = places_.begin();
    for (size_t chunk = 0; chunk < schedule_.chunks; ++chunk) {
      int expected = 0;
      while (place != places_.end() && place->cell.chunk == chunk) {
        const int micro_batch = place->cell.micro_batch;
        check_absent(chunk, expected, micro_batch);
        const auto begin = place;
        while (place != places_.end() && place->cell.chunk == chunk && place->cell.micro_batch == micro_batch) ++place;
        check_micro_batch({begin, place});
        expected = micro_batch + 1;
      }
      check_absent(chunk, expected, schedule_.micro_batches);
    }
  }

  // All cells of one micro-batch on one chunk, by pass.
  void check_micro_batch(std::span<const Place> places) {
    std::array<const Place*, 4> first{};
    for (const Place& place : places) {
      const Place*& known = first[static_cast<size_t>(place.cell.pass)];
      if (known == nullptr)
        known = &place;
      else
        problem("once", place.rank, place.position, "{}: it stands in cell {} already", to_string(place.cell),
                known->position + 1);
    }
    const auto [forward, whole, input, weight] = first;
    const Cell& cell = places.front().cell;
    const auto missing = [&](Pass pass, std::string_view why) {
      problem("once", rank_of(cell.chunk), -1, "the {} of chunk {} for micro-batch {} is missing{}",
              pass_in_words(pass), cell.chunk, cell.micro_batch, why);
    };
    if (forward == nullptr) missing(Pass::Forward, "");
    if (whole == nullptr && input == nullptr && weight == nullptr) missing(Pass::Backward, "");
    if (whole != nullptr)
      for (const Place* part : {input, weight})
        if (part != nullptr)
          problem("once", part->rank, part->position, "{}: the whole backward {} stands in cell {}",
                  to_string(part->cell), to_string(whole->cell), whole->position + 1);
    if (whole == nullptr && input == nullptr && weight != nullptr)
      missing(Pass::BackwardInput, fmt::format(", its weight part stands in cell {}", weight->position + 1));
    if (whole == nullptr && input != nullptr && weight == nullptr)
      missing(Pass::BackwardWeight, fmt::format(", its input part stands in cell {}", input->position + 1));

    const auto behind = [&, its_forward = forward](const Place* place, const Place* earlier) {
      if (place == nullptr || earlier == nullptr || earlier->position < place->position) return;
      problem("order", place->rank, place->position, "{} stands before its {} {}, cell {}", to_string(place->cell),
              earlier == its_forward ? "forward" : "input part", to_string(earlier->cell), earlier->position + 1);
    };
    behind(whole, forward);
    behind(input, forward);
    behind(weight, input != nullptr ? input : forward);
  }

  void check_accumulation(int rank) {
    const std::vector<Cell>& cells = schedule_.by_rank[static_cast<size_t>(rank)];
    std::vector<std::pair<uint16_t, size_t>> last;  // chunk of this rank, and its last cell that adds to gradients
    for (size_t i = 0; i < cells.size(); ++i) {
      const Cell& cell = cells[i];
      if (cell.pass != Pass::Backward && cell.pass != Pass::BackwardWeight) continue;
      const auto known = std::ranges::find(last, cell.chunk, &std::pair<uint16_t, size_t>::first);
      if (known == last.end()) {
        last.emplace_back(cell.chunk, i);
        continue;
      }
      if (cells[known->second].micro_batch > cell.micro_batch)
        problem("accumulation", rank, positions_[static_cast<size_t>(rank)][i],
                "{} adds to the gradients of chunk {} behind {}; allowed: micro-batches in ascending order",
                to_string(cell), cell.chunk, to_string(cells[known->second]));
      known->second = i;
    }
  }

  void check_pairs(int rank) {
    const std::vector<Cell>& cells = schedule_.by_rank[static_cast<size_t>(rank)];
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!cells[i].with_next) continue;
      const int position = positions_[static_cast<size_t>(rank)][i];
      if (i + 1 == cells.size())
        problem("pair", rank, position, "{} runs together with the next cell, but there is none", to_string(cells[i]));
      else if (cells[i + 1].with_next)
        problem("pair", rank, position, "{}, {} and the next run together: allowed are two", to_string(cells[i]),
                to_string(cells[i + 1]));
      else if ((cells[i].pass == Pass::Forward) == (cells[i + 1].pass == Pass::Forward))
        problem("pair", rank, position, "{} and {} run together: allowed are a forward and a backward",
                to_string(cells[i]), to_string(cells[i + 1]));
    }
  }

  const Schedule& schedule_;
  const std::vector<std::vector<int>>& positions_;
  std::vector<Place> places_;
  Problems problems_;
};

}  // namespace

std::vector<ScheduleProblem> problems_of_passes(const Schedule& schedule,
                                                const std::vector<std::vector<int>>& positions) {
  return Passes(schedule, positions).check();
}

}  // namespace shardpipe
