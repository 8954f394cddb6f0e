#include "schedules/text.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "schedules/check.h"
#include "schedules/torch_csv.h"
#include "schedules/v_shape.h"

namespace shardpipe {
namespace {

constexpr std::string_view blanks = " \t\r\v\f";
constexpr std::string_view cell_in_words = "a cell such as 0F3 (chunk, F, B, I or W, micro-batch) or a pair (0F3;1B2)";

uint16_t rank_in_loop(size_t chunk, size_t ranks) { return static_cast<uint16_t>(chunk % ranks); }

bool is_placed_by(const Schedule& schedule, uint16_t (*rank_of)(size_t, size_t)) {
  for (size_t chunk = 0; chunk < schedule.rank_of_chunk.size(); ++chunk)
    if (schedule.rank_of_chunk[chunk] != rank_of(chunk, schedule.by_rank.size())) return false;
  return schedule.rank_of_chunk.size() == schedule.chunks && !schedule.by_rank.empty();
}

std::string cells_in_text(const std::vector<Cell>& cells) {
  std::string text;
  bool together = false;
  for (const Cell& cell : cells) {
    text += together ? ";" : cell.with_next ? " (" : " ";
    text += to_string(cell);
    if (together && !cell.with_next) text += ')';
    together = cell.with_next;
  }
  return text;
}

class Parser {
 public:
  explicit Parser(std::string_view file) : file_(file) {}

  Schedule parse(std::string_view text) {
    for (line_number_ = 1; !text.empty(); ++line_number_) {
      const size_t end = std::min(text.find('\n'), text.size());
      line_ = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      line_ = line_.substr(0, line_.find('#'));
      at_ = 0;
      take_line();
    }
    finish();
    if (!problems_.empty()) throw InputError(shorten(std::move(problems_)));
    return std::move(schedule_);
  }

 private:
  void fail(size_t column, std::string_view found, std::string_view allowed) {
    problems_.push_back(fmt::format("{}:{}:{}: found {}, allowed: {}", file_, line_number_, column + 1,
                                    found.empty() ? "the end of the line" : quote_found(found), allowed));
  }

  void skip_blanks() { at_ = std::min(line_.find_first_not_of(blanks, at_), line_.size()); }
  // Empty at the end of the line.
  std::string_view word() {
    skip_blanks();
    const size_t begin = at_;
    at_ = std::min(line_.find_first_of(blanks, at_), line_.size());
    return line_.substr(begin, at_ - begin);
  }

  template <typename Number>
  std::optional<Number> number(std::string_view text) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
  }

  void end_of_line() {
    skip_blanks();
    if (at_ < line_.size()) fail(at_, line_.substr(at_), "the end of the line");
  }

  void take_line() {
    skip_blanks();
    if (at_ == line_.size()) return;
    const size_t column = at_;
    if (rank_seen_ && ((line_[at_] >= '0' && line_[at_] <= '9') || line_[at_] == '(')) return take_cells();
    const std::string_view keyword = word();
    if (keyword == "schedule") {
      once(column, keyword, name_seen_);
      skip_blanks();
      std::string_view name = line_.substr(at_);
      name = name.substr(0, name.find_last_not_of(blanks) + 1);
      if (name.empty()) fail(at_, name, "a name");
      schedule_.name = name;
    } else if (keyword == "chunks") {
      once(column, keyword, chunks_seen_);
      take_chunks();
    } else if (keyword == "micro-batches") {
      once(column, keyword, micro_batches_seen_);
      const size_t where = (skip_blanks(), at_);
      const std::string_view found = word();
      const auto count = number<uint16_t>(found);
      if (count && *count > 0)
        schedule_.micro_batches = *count;
      else
        fail(where, found, "a number from 1 to 65535");
      end_of_line();
    } else if (keyword == "rank") {
      take_rank();
    } else {
      fail(column, keyword,
           rank_seen_ ? fmt::format("rank {}, or {}", schedule_.by_rank.size(), cell_in_words)
                      : "schedule NAME, chunks, micro-batches or rank 0, a line each");
    }
  }

  void once(size_t column, std::string_view keyword, bool& seen) {
    if (seen) fail(column, keyword, "this line once");
    if (rank_seen_) fail(column, keyword, "this line before the first rank");
    seen = true;
  }

  // chunks 8 loop | chunks 8 v | chunks on 0 1 1 0
  void take_chunks() {
    const size_t where = (skip_blanks(), at_);
    const std::string_view first = word();
    if (first == "on") {
      skip_blanks();
      if (at_ == line_.size()) fail(at_, "", "the rank of each chunk");
      while (at_ < line_.size()) {
        const size_t column = at_;
        const std::string_view found = word();
        const auto rank = number<uint16_t>(found);
        if (!rank || schedule_.rank_of_chunk.size() == 65'535)
          return fail(column, found, "the rank of each chunk, a number each, of at most 65535 chunks");
        schedule_.rank_of_chunk.push_back(*rank);
        skip_blanks();
      }
      schedule_.chunks = static_cast<uint16_t>(schedule_.rank_of_chunk.size());
      return;
    }
    const auto count = number<uint16_t>(first);
    if (!count || *count == 0)
      return fail(where, first, "a number of chunks and how they are placed (8 loop, 8 v), or on and a rank for each");
    schedule_.chunks = *count;
    const size_t column = (skip_blanks(), at_);
    const std::string_view placed = word();
    if (placed == "loop")
      rank_of_ = rank_in_loop;
    else if (placed == "v")
      rank_of_ = rank_in_v;
    else
      fail(column, placed, "loop or v");
    end_of_line();
  }

  void take_rank() {
    const size_t where = (skip_blanks(), at_);
    std::string_view found = word();
    if (found.ends_with(':')) found.remove_suffix(1);
    const size_t expected = schedule_.by_rank.size();
    if (number<size_t>(found) != expected || expected == most_ranks_in_a_file)
      fail(where, found, fmt::format("{}: ranks in their order, each once", expected));
    rank_seen_ = true;
    if (expected < most_ranks_in_a_file) schedule_.by_rank.emplace_back();
    take_cells();
  }

  std::string where_in_rank() const {
    return fmt::format(" (rank {}, cell {})", schedule_.by_rank.size() - 1, schedule_.by_rank.back().size() + 1);
  }

  // From here to the end of the line.
  void take_cells() {
    for (skip_blanks(); at_ < line_.size(); skip_blanks()) {
      if (line_[at_] == '(') {
        take_together();
        continue;
      }
      const size_t column = at_;
      const size_t end = std::min(line_.find_first_of(" \t\r\v\f(", at_), line_.size());
      take_cell(column, line_.substr(at_, end - at_), false);
      at_ = end;
    }
  }

  void take_together() {
    const size_t open = at_;
    const size_t close = line_.find(')', open);
    if (close == std::string_view::npos) {
      fail(open, line_.substr(open), fmt::format("')' at the end of cells that run together{}", where_in_rank()));
      at_ = line_.size();
      return;
    }
    at_ = close + 1;
    if (line_.substr(open, close - open).find(';') == std::string_view::npos)
      return fail(open, line_.substr(open, close + 1 - open),
                  fmt::format("two cells with ';' between them{}", where_in_rank()));
    for (size_t begin = open + 1; begin <= close;) {
      const size_t end = std::min(line_.find(';', begin), close);
      std::string_view part = line_.substr(begin, end - begin);
      const size_t skipped = std::min(part.find_first_not_of(blanks), part.size());
      part.remove_prefix(skipped);
      part = part.substr(0, part.find_last_not_of(blanks) + 1);
      take_cell(begin + skipped, part, end < close);
      begin = end + 1;
    }
  }

  void take_cell(size_t column, std::string_view text, bool with_next) {
    std::optional<Cell> cell = parse_cell(text);
    if (!cell) {
      problems_.push_back(fmt::format("{}:{}:{}: found {}, allowed: {}{}", file_, line_number_, column + 1,
                                      quote_found(text), cell_in_words, where_in_rank()));
      return;
    }
    if (chunks_seen_ && schedule_.chunks > 0 && cell->chunk >= schedule_.chunks)
      fail(column, text, fmt::format("chunks 0 to {}{}", schedule_.chunks - 1, where_in_rank()));
    if (micro_batches_seen_ && schedule_.micro_batches > 0 && cell->micro_batch >= schedule_.micro_batches)
      fail(column, text, fmt::format("micro-batches 0 to {}{}", schedule_.micro_batches - 1, where_in_rank()));
    cell->with_next = with_next;
    schedule_.by_rank.back().push_back(*cell);
  }

  void finish() {
    const auto missing = [&](std::string_view what) {
      problems_.push_back(fmt::format("{}: found no line '{}', allowed: one", file_, what));
    };
    if (!name_seen_) missing("schedule NAME");
    if (!chunks_seen_) missing("chunks");
    if (!rank_seen_) missing("rank 0");
    if (!problems_.empty()) return;
    const size_t ranks = schedule_.by_rank.size();
    if (rank_of_ != nullptr)
      for (size_t chunk = 0; chunk < schedule_.chunks; ++chunk)
        schedule_.rank_of_chunk.push_back(rank_of_(chunk, ranks));
    for (size_t chunk = 0; chunk < schedule_.chunks; ++chunk)
      if (schedule_.rank_of_chunk[chunk] >= ranks)
        problems_.push_back(
            fmt::format("{}: chunks on …: found rank {} for chunk {}, allowed: 0 to {}, the ranks below", file_,
                        schedule_.rank_of_chunk[chunk], chunk, ranks - 1));
    if (micro_batches_seen_) return;
    uint16_t micro_batches = 0;
    for (const std::vector<Cell>& cells : schedule_.by_rank)
      for (const Cell& cell : cells)
        micro_batches = std::max(micro_batches, static_cast<uint16_t>(cell.micro_batch + 1));
    if (micro_batches == 0) problems_.push_back(fmt::format("{}: found no cell, allowed: at least one", file_));
    schedule_.micro_batches = micro_batches;
  }

  std::string_view file_, line_;
  size_t line_number_ = 0, at_ = 0;
  Schedule schedule_;
  uint16_t (*rank_of_)(size_t chunk, size_t ranks) = nullptr;
  bool name_seen_ = false, chunks_seen_ = false, micro_batches_seen_ = false, rank_seen_ = false;
  std::vector<std::string> problems_;
};

bool begins_with_a_cell(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const size_t at = line.find_first_not_of(blanks);
    if (at != std::string_view::npos && line[at] != '#')
      return line[at] == '(' || line[at] == ',' || (line[at] >= '0' && line[at] <= '9');
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

}  // namespace

std::optional<Cell> parse_cell(std::string_view text) {
  Cell cell{};
  const char* const end = text.data() + text.size();
  const auto chunk = std::from_chars(text.data(), end, cell.chunk);
  if (chunk.ec != std::errc{} || chunk.ptr == end) return std::nullopt;
  constexpr std::string_view letters = "FBIW";
  const size_t pass = letters.find(*chunk.ptr);
  if (pass == std::string_view::npos) return std::nullopt;
  cell.pass = static_cast<Pass>(pass);
  const auto micro_batch = std::from_chars(chunk.ptr + 1, end, cell.micro_batch);
  if (micro_batch.ec != std::errc{} || micro_batch.ptr != end) return std::nullopt;
  constexpr uint16_t past_the_last = 65'535;  // a schedule counts chunks and micro-batches in 16 bits
  if (cell.chunk == past_the_last || cell.micro_batch == past_the_last) return std::nullopt;
  return cell;
}

std::string print_schedule(const Schedule& schedule) {
  std::string text = fmt::format("schedule {}\n", schedule.name);
  if (is_placed_by(schedule, rank_in_loop))
    text += fmt::format("chunks {} loop\n", schedule.chunks);
  else if (is_placed_by(schedule, rank_in_v))
    text += fmt::format("chunks {} v\n", schedule.chunks);
  else
    text += fmt::format("chunks on {}\n", fmt::join(schedule.rank_of_chunk, " "));
  text += fmt::format("micro-batches {}\n\n", schedule.micro_batches);
  for (size_t rank = 0; rank < schedule.by_rank.size(); ++rank)
    text += fmt::format("rank {} {}\n", rank, cells_in_text(schedule.by_rank[rank]));
  return text;
}

Schedule parse_schedule(std::string_view text, std::string_view file) { return Parser(file).parse(text); }

Schedule read_schedule(std::string_view text, const std::string& file) {
  const bool is_csv = file.ends_with(".csv") || begins_with_a_cell(text);
  Schedule schedule = is_csv ? without_movement(parse_torch_csv(text, file)) : parse_schedule(text, file);
  std::vector<std::string> problems;
  for (const ScheduleProblem& problem : problems_of(schedule))
    problems.push_back(fmt::format("{}: {}", file, to_string(problem)));
  if (!problems.empty()) throw InputError(shorten(std::move(problems)));
  return schedule;
}

std::string quote_found(std::string_view found) {
  constexpr size_t most = 40;
  std::string text = "'";
  for (const char character : found.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(character);
    text += byte < 0x20 || byte >= 0x7F ? '?' : character;
  }
  return text + (found.size() > most ? "…'" : "'");
}

std::vector<std::string> shorten(std::vector<std::string> problems) {
  if (problems.size() <= most_problems_told) return problems;
  const size_t more = problems.size() - most_problems_told;
  problems.resize(most_problems_told);
  const std::string& last = problems.back();
  problems.push_back(fmt::format("{}: and {} mistakes more", last.substr(0, last.find(':')), more));
  return problems;
}

}  // namespace shardpipe
