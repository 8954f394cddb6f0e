// Published figures as files: comment lines that begin with '#', a line of column names, then a line a row. No quotes.
#pragma once
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace shardpipe {

class CsvRow {
 public:
  explicit CsvRow(std::map<std::string, std::string> fields) : fields_(std::move(fields)) {}
  // std::out_of_range where there is no such column, std::invalid_argument where it holds no number.
  const std::string& text(const std::string& column) const { return fields_.at(column); }
  bool has(const std::string& column) const { return !text(column).empty(); }
  double number(const std::string& column) const { return std::stod(text(column)); }
  int64_t whole(const std::string& column) const { return std::stoll(text(column)); }
  // Half a unit of the last digit that is printed: by how much a rounded figure may be off.
  double rounding(const std::string& column) const {
    const std::string& digits = text(column);
    const size_t point = digits.find('.');
    return (0.5 + 1e-9) *
           std::pow(10.0, point == std::string::npos ? 0 : -static_cast<double>(digits.size() - point - 1));
  }

 private:
  std::map<std::string, std::string> fields_;  // by column
};

// std::runtime_error where the file is missing or a row has more or fewer fields than there are columns.
inline std::vector<CsvRow> read_csv(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  std::vector<std::string> columns;
  std::vector<CsvRow> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::vector<std::string> fields;
    std::stringstream stream(line);
    for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
    if (line.ends_with(',')) fields.emplace_back();
    if (columns.empty()) {
      columns = fields;
      continue;
    }
    if (fields.size() != columns.size()) throw std::runtime_error(path + ": not as many fields as columns: " + line);
    std::map<std::string, std::string> row;
    for (size_t i = 0; i < columns.size(); ++i) row[columns[i]] = fields[i];
    rows.emplace_back(std::move(row));
  }
  return rows;
}

}  // namespace shardpipe
