// A schedule as a person writes it: a header, and a line a rank. print and parse are each other's inverse.
//
//   schedule two-by-two     # the name: the rest of the line
//   chunks 4 v              # as many chunks, placed in a v (0 1 1 0) or a loop (0 1 0 1); or: chunks on 0 1 1 0
//   micro-batches 2         # may be left out: as many as the cells name
//   rank 0  0F0 0F1 3F0 (3F1;3B0) 3B1 0B0 0B1
//   rank 1  1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1
//
// `#` begins a comment. A cell is chunk, pass (F, B, I or W, as letter() says) and micro-batch; cells in parentheses,
// with semicolons between them, run together (Cell::with_next). A line that begins with a cell continues its rank's.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedules/schedule.h"

namespace shardpipe {

// The name must have a character, none of them '#' or the end of a line, and no space at its ends.
std::string print_schedule(const Schedule&);

// InputError with every mistake, a line each: file, line, column, what was found and what is allowed. Whether the
// schedule makes sense is for check.h; here every chunk named is one that the header has.
Schedule parse_schedule(std::string_view text, std::string_view file = "schedule");

// A schedule file's text in either format: PyTorch's (torch_csv.h) where `file` ends in .csv or the text begins with a
// cell, else the one above. InputError with all that is wrong: the text, or what check.h finds.
Schedule read_schedule(std::string_view text, const std::string& file);

// "0F3"; nullopt where the text is anything else.
std::optional<Cell> parse_cell(std::string_view);

// How many ranks what is found in a file may have at most, and lines of complaint about it.
constexpr size_t most_ranks_in_a_file = 65'535, most_problems_told = 12;

// In messages: the beginning of what was found, between quotes, with nothing in it that a terminal obeys.
std::string quote_found(std::string_view);
// Leaves the first most_problems_told, and a line that counts the others.
std::vector<std::string> shorten(std::vector<std::string> problems);

}  // namespace shardpipe
