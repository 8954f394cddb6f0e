#include "schedules/torch_csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "schedules/text.h"

namespace shardpipe {
namespace {

constexpr std::string_view overlap = "OVERLAP_F_B";
constexpr std::string_view cell_in_words =
    "an action such as 0F3, 2SEND_F1 or 0UNSHARD, a pair (0F3;1B2)OVERLAP_F_B, or nothing";

// As written, before the file's notation is known.
enum class Word : uint8_t { F, B, I, W, BW, Movement };
struct Written {
  Word word;
  LoweredAction action;
  size_t row, cell;  // from 0; an idle cell counts
  std::string_view text;
};

struct Name {
  std::string_view text;
  Word word;
  LoweredKind kind;  // of movement
};
constexpr std::array names{Name{"F", Word::F, LoweredKind::Forward},
                           Name{"B", Word::B, LoweredKind::Backward},
                           Name{"I", Word::I, LoweredKind::BackwardInput},
                           Name{"W", Word::W, LoweredKind::BackwardWeight},
                           Name{"BW", Word::BW, LoweredKind::Backward},
                           Name{"UNSHARD", Word::Movement, LoweredKind::Unshard},
                           Name{"RESHARD", Word::Movement, LoweredKind::Reshard},
                           Name{"REDUCE_GRAD", Word::Movement, LoweredKind::ReduceGrad},
                           Name{"SEND_F", Word::Movement, LoweredKind::SendForward},
                           Name{"RECV_F", Word::Movement, LoweredKind::ReceiveForward},
                           Name{"SEND_B", Word::Movement, LoweredKind::SendBackward},
                           Name{"RECV_B", Word::Movement, LoweredKind::ReceiveBackward}};

constexpr bool is_of_a_chunk(LoweredKind kind) {
  return kind == LoweredKind::Unshard || kind == LoweredKind::Reshard || kind == LoweredKind::ReduceGrad;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\v\f";
  const size_t begin = std::min(text.find_first_not_of(blanks), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(blanks) + 1);
}

// "2SEND_F1"; nullopt where it is no action. Numbers below 65535: a schedule counts in 16 bits.
std::optional<std::pair<Word, LoweredAction>> parse_action(std::string_view text) {
  constexpr uint16_t past_the_last = UINT16_MAX;
  const char* const end = text.data() + text.size();
  LoweredAction action{};
  const auto chunk = std::from_chars(text.data(), end, action.chunk);
  if (chunk.ec != std::errc{} || action.chunk == past_the_last) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(chunk.ptr - text.data()));
  const size_t length = std::min(text.find_first_of("0123456789"), text.size());
  const auto name = std::ranges::find(names, text.substr(0, length), &Name::text);
  if (name == names.end()) return std::nullopt;
  action.kind = name->kind;
  text.remove_prefix(length);
  if (text.empty()) return is_of_a_chunk(action.kind) ? std::optional(std::pair(name->word, action)) : std::nullopt;
  const auto micro_batch = std::from_chars(text.data(), end, action.micro_batch);
  if (micro_batch.ec != std::errc{} || micro_batch.ptr != end || action.micro_batch == past_the_last)
    return std::nullopt;
  return std::pair(name->word, action);
}

class Parser {
 public:
  explicit Parser(const std::string& file) : file_(file) {}

  void read(std::string_view text) {
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view row = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (trimmed(row).empty()) {
        if (trimmed(text).find_first_not_of("\n\r \t") != std::string_view::npos)
          problem(ranks_, fmt::format("found an empty row, allowed: a row a rank, commas where it is idle"));
        else
          break;
      }
      take_row(row);
      if (++ranks_ == most_ranks_in_a_file) {
        problem(ranks_, fmt::format("found more rows, allowed: {}", most_ranks_in_a_file));
        break;
      }
    }
    if (written_.empty()) problems_.push_back(fmt::format("{}: found no action, allowed: a row of them a rank", file_));
    choose_notation();
    fail_if_wrong();
  }

  TorchNotation notation() const { return notation_; }

  LoweredSchedule schedule() {
    LoweredSchedule schedule;
    schedule.name = name_of_file();
    schedule.by_rank.resize(ranks_);
    for (const Written& written : written_) {
      LoweredAction action = written.action;
      if (notation_ == TorchNotation::BW && written.word == Word::B) action.kind = LoweredKind::BackwardInput;
      schedule.by_rank[written.row].push_back(action);
      schedule.chunks = std::max<uint16_t>(schedule.chunks, static_cast<uint16_t>(action.chunk + 1));
      if (is_pass(action.kind))
        schedule.micro_batches =
            std::max<uint16_t>(schedule.micro_batches, static_cast<uint16_t>(action.micro_batch + 1));
    }
    place(schedule);
    fail_if_wrong();
    return schedule;
  }

 private:
  void problem(size_t row, std::string_view text) {
    problems_.push_back(fmt::format("{}:{}: {}", file_, row + 1, text));
  }
  void fail(size_t cell, std::string_view found, std::string_view allowed) {
    problem(ranks_,
            fmt::format("rank {}, cell {}: found {}, allowed: {}", ranks_, cell + 1, quote_found(found), allowed));
  }
  void fail_if_wrong() {
    if (!problems_.empty()) throw InputError(shorten(std::move(problems_)));
  }

  void take_row(std::string_view row) {
    for (size_t cell = 0;; ++cell) {
      const size_t comma = row.find(',');
      take_cell(cell, trimmed(row.substr(0, comma)));
      if (comma == std::string_view::npos) return;
      row.remove_prefix(comma + 1);
    }
  }

  void take_cell(size_t cell, std::string_view text) {
    if (text.empty()) return;
    if (text.front() != '(') return take_action(cell, text, text, false);
    const size_t close = text.find(')'), semicolon = text.find(';');
    if (close == std::string_view::npos || semicolon > close || text.substr(close + 1) != overlap)
      return fail(cell, text, "two passes such as (0F3;1B2)OVERLAP_F_B");
    const std::string_view first = trimmed(text.substr(1, semicolon - 1));
    const std::string_view second = trimmed(text.substr(semicolon + 1, close - semicolon - 1));
    take_action(cell, first, text, true);
    take_action(cell, second, text, false);
    for (const std::string_view part : {first, second})
      if (const auto action = parse_action(part); action && !is_pass(action->second.kind))
        fail(cell, text, "passes in a pair");
  }

  void take_action(size_t cell, std::string_view text, std::string_view whole, bool with_next) {
    const auto action = parse_action(text);
    if (!action) return fail(cell, whole, cell_in_words);
    written_.push_back({action->first, action->second, ranks_, cell, text});
    written_.back().action.with_next = with_next;
  }

  void choose_notation() {
    const auto first_of = [this](Word word) { return std::ranges::find(written_, word, &Written::word); };
    const auto old = first_of(Word::BW), fresh = first_of(Word::I);
    if (old != written_.end() && fresh != written_.end()) {
      problems_.push_back(fmt::format(
          "{}: found {} (rank {}, cell {}) and {} (rank {}, cell {}), allowed: one notation: B, I and W (whole "
          "backward, its input part, its weight part) or, as older files have them, BW, B and W",
          file_, quote_found(old->text), old->row, old->cell + 1, quote_found(fresh->text), fresh->row,
          fresh->cell + 1));
      return;
    }
    if (fresh != written_.end()) return;
    std::set<std::pair<uint16_t, uint16_t>> with_b;
    for (const Written& written : written_)
      if (written.word == Word::B) with_b.insert({written.action.chunk, written.action.micro_batch});
    const bool splits = std::ranges::any_of(written_, [&](const Written& written) {
      return written.word == Word::W && with_b.contains({written.action.chunk, written.action.micro_batch});
    });
    if (old != written_.end() || splits) notation_ = TorchNotation::BW;
  }

  // A stage is on the rank whose row runs it.
  void place(LoweredSchedule& schedule) {
    std::vector<const Written*> first(schedule.chunks, nullptr);
    for (const Written& written : written_) {
      if (written.word == Word::Movement) continue;
      const Written*& known = first[written.action.chunk];
      if (known == nullptr) known = &written;
      if (known->row == written.row) continue;
      problem(written.row, fmt::format("rank {}, cell {}: found {}, allowed: the stages of this rank; stage {} is on "
                                       "rank {} ({}, cell {})",
                                       written.row, written.cell + 1, quote_found(written.text), written.action.chunk,
                                       known->row, known->text, known->cell + 1));
    }
    for (const Written& written : written_)
      if (const Written* pass = first[written.action.chunk];
          pass != nullptr && pass->row != written.row && written.word == Word::Movement)
        problem(written.row,
                fmt::format("rank {}, cell {}: found {}, allowed: the stages of this rank; stage {} runs "
                            "on rank {}",
                            written.row, written.cell + 1, quote_found(written.text), written.action.chunk, pass->row));
    for (size_t chunk = 0; chunk < first.size(); ++chunk) {
      if (first[chunk] == nullptr)
        problems_.push_back(
            fmt::format("{}: found no pass of stage {}, allowed: every stage below {}, the highest, in "
                        "the row of its rank",
                        file_, chunk, schedule.chunks));
      schedule.rank_of_chunk.push_back(first[chunk] == nullptr ? 0 : static_cast<uint16_t>(first[chunk]->row));
    }
  }

  std::string name_of_file() const {
    std::string name = file_.substr(file_.find_last_of('/') + 1);
    if (name.ends_with(".csv")) name.resize(name.size() - 4);
    return name.empty() ? "schedule" : name;
  }

  const std::string& file_;
  size_t ranks_ = 0;
  std::vector<Written> written_;
  TorchNotation notation_ = TorchNotation::I;
  std::vector<std::string> problems_;
};

std::string text_of(const LoweredAction& action, TorchNotation notation) {
  if (notation == TorchNotation::BW) {
    if (action.kind == LoweredKind::Backward) return fmt::format("{}BW{}", action.chunk, action.micro_batch);
    if (action.kind == LoweredKind::BackwardInput) return fmt::format("{}B{}", action.chunk, action.micro_batch);
  }
  return to_string(action);
}

}  // namespace

LoweredSchedule parse_torch_csv(std::string_view text, const std::string& file) {
  Parser parser(file);
  parser.read(text);
  return parser.schedule();
}

TorchNotation notation_of_torch_csv(std::string_view text, const std::string& file) {
  Parser parser(file);
  parser.read(text);
  return parser.notation();
}

std::string print_torch_csv(const LoweredSchedule& schedule, TorchNotation notation) {
  std::string text;
  for (const std::vector<LoweredAction>& actions : schedule.by_rank) {
    for (size_t i = 0; i < actions.size(); ++i) {
      if (i > 0) text += ',';
      if (!actions[i].with_next || i + 1 == actions.size()) {
        text += text_of(actions[i], notation);
        continue;
      }
      text += fmt::format("({};{}){}", text_of(actions[i], notation), text_of(actions[i + 1], notation), overlap);
      ++i;
    }
    if (actions.empty()) text += ',';  // a rank that does nothing; an empty line would be none
    text += '\n';
  }
  return text;
}

std::string print_torch_csv(const Schedule& schedule, TorchNotation notation) {
  return print_torch_csv(without_messages(schedule), notation);
}

}  // namespace shardpipe
