// Text tables, and numbers as people read them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardpipe {

struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // each as long as the header, else InvariantError
};

// Columns as wide as their widest cell, two spaces between; a column whose cells are all numbers (with a unit or not;
// empty and "-" do not count) is aligned to the right. Every line ends in a line break; none ends in a space.
std::string to_text(const Table&);

std::string human_bytes(uint64_t bytes);    // 512 B, 1.50 MiB: three digits
std::string human_count(double count);      // 999, 10.2 M: three digits
std::string human_seconds(double seconds);  // 0:07, 12:03, 1:02:03, 2d 03:04; "-" when not finite or negative

// Columns a terminal needs for UTF-8 text without wide or combining characters: its code points.
size_t text_columns(std::string_view text);

}  // namespace shardpipe
