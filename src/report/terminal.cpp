#include "report/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace shardpipe {

bool is_terminal(int file_descriptor) {
  const char* terminal = std::getenv("TERM");
  return isatty(file_descriptor) == 1 && terminal && std::string_view(terminal) != "dumb";
}

int terminal_columns(int file_descriptor) {
  winsize window{};
  if (ioctl(file_descriptor, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) return window.ws_col;
  if (const char* text = std::getenv("COLUMNS")) {
    const std::string_view digits = text;
    int columns = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), columns);
    if (error == std::errc() && end == digits.end() && columns > 0) return columns;
  }
  return 80;
}

}  // namespace shardpipe
