#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/error.h"

namespace shardpipe {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A number, alone or with a unit: 12, -1.5e-3, 40 %, 1.50 MiB.
bool is_number(std::string_view cell) {
  const std::string_view number = cell.substr(0, cell.find_first_of(" %"));
  const size_t first = number.find_first_not_of("+-.");
  return first <= 2 && first < number.size() && is_digit(number[first]) &&
         number.find_first_not_of("0123456789.,eE+-") == std::string_view::npos;
}

// Three significant digits of a value below 1000 or so.
std::string three_digits(double value) {
  const int decimals = std::abs(value) < 9.995 ? 2 : std::abs(value) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}", value, decimals);
}

std::string scaled(double value, double base, std::span<const char* const> units) {
  size_t unit = 0;
  for (; unit + 1 < units.size() && std::abs(value) >= base - 0.5; ++unit) value /= base;
  return fmt::format("{} {}", three_digits(value), units[unit]);
}

}  // namespace

size_t text_columns(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string to_text(const Table& table) {
  const size_t columns = table.header.size();
  std::vector<size_t> widths(columns, 0);
  std::vector<bool> right(columns, false);
  for (size_t column = 0; column < columns; ++column) {
    widths[column] = text_columns(table.header[column]);
    bool only_numbers = true;
    for (const auto& row : table.rows) {
      check_invariant(row.size() == columns, "a row of {} cells in a table of {} columns", row.size(), columns);
      const std::string& cell = row[column];
      widths[column] = std::max(widths[column], text_columns(cell));
      if (cell.empty() || cell == "-") continue;
      right[column] = true;
      only_numbers = only_numbers && is_number(cell);
    }
    right[column] = right[column] && only_numbers;
  }
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t column = 0; column < columns; ++column) {
      const std::string padding(widths[column] - text_columns(cells[column]), ' ');
      if (column > 0) line += "  ";
      line += right[column] ? padding + cells[column] : cells[column] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line(table.header);
  for (const auto& row : table.rows) add_line(row);
  return text;
}

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  static constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  return scaled(static_cast<double>(bytes) / 1024, 1024, units);
}

std::string human_count(double count) {
  if (!std::isfinite(count)) return fmt::format("{}", count);
  if (std::abs(count) < 999.5) return count == std::trunc(count) ? fmt::format("{:.0f}", count) : three_digits(count);
  static constexpr const char* units[] = {"k", "M", "G", "T", "P", "E"};
  return scaled(count / 1000, 1000, units);
}

std::string human_seconds(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "-";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const int64_t days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}", days, hours, minutes);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

}  // namespace shardpipe
