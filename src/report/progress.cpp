#include "report/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <limits>

#include "report/table.h"
#include "report/terminal.h"

namespace shardpipe {
namespace {

constexpr int64_t plain_lines = 20;     // a run
constexpr double redraw_seconds = 0.1;  // more often is more than an eye sees
constexpr size_t shortest_bar = 6, longest_bar = 30;
constexpr std::string_view erase_to_end = "\x1b[K";

std::string loss_text(double loss) {
  return std::abs(loss) < 1e4 || !std::isfinite(loss) ? fmt::format("{:.4f}", loss) : fmt::format("{:.2e}", loss);
}

std::string bar(double done, size_t columns) {
  const auto filled = static_cast<size_t>(std::lround(std::clamp(done, 0.0, 1.0) * static_cast<double>(columns)));
  return fmt::format("[{:=<{}}{: <{}}]", "", filled, "", columns - filled);
}

}  // namespace

std::string progress_line(const ProgressState& state, int64_t steps, int64_t first_step, int columns, bool with_bar) {
  const auto width = static_cast<size_t>(std::max(columns, 0));
  const int64_t done = state.step - first_step;
  const double left = done > 0 ? state.seconds / static_cast<double>(done) * static_cast<double>(steps - state.step)
                               : std::numeric_limits<double>::quiet_NaN();
  // As they stand in the line, with the order in which they are let in. Beside a bar, "step" goes without saying.
  struct Field {
    int rank;
    std::string text;
    bool shown = false;
  };
  std::array fields = {
      Field{1, fmt::format("{}{}/{}", with_bar ? "" : "step ", state.step, steps)},
      Field{2, fmt::format("loss {}", loss_text(state.loss))},
      Field{6, state.val_loss ? fmt::format("val {}", loss_text(*state.val_loss)) : ""},
      Field{4, fmt::format("{} tok/s", human_count(state.tokens_per_second))},
      Field{5, state.peak_bytes > 0 ? human_bytes(state.peak_bytes) : ""},
      Field{3, state.step < steps ? fmt::format("ETA {}", human_seconds(left)) : human_seconds(state.seconds)},
  };
  constexpr size_t gap = 2;
  size_t used = 0;
  for (int rank = 1; rank <= static_cast<int>(fields.size()); ++rank) {
    const size_t reserved = with_bar ? shortest_bar + 2 + gap : 0;
    Field& field = *std::ranges::find(fields, rank, &Field::rank);
    const size_t needed = used + (used > 0 ? gap : 0) + field.text.size();
    if (field.text.empty()) continue;
    if (needed + reserved > width) {
      // The bar goes before the first four fields do.
      if (with_bar && rank <= 4) return progress_line(state, steps, first_step, columns, false);
      continue;
    }
    field.shown = true;
    used = needed;
  }
  std::string line;
  if (with_bar)
    line = bar(static_cast<double>(state.step) / static_cast<double>(std::max<int64_t>(steps, 1)),
               std::min(width - used - gap - 2, longest_bar));
  for (const Field& field : fields) {
    if (!field.shown) continue;
    if (!line.empty()) line.append(gap, ' ');
    line += field.text;
  }
  return line;
}

ProgressSink stderr_sink() {
  return {.write =
              [](std::string_view text) {
                while (!text.empty()) {
                  const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
                  if (written < 0 && errno == EINTR) continue;
                  if (written < 0) return;  // nobody watches; the run goes on, and its files say the same
                  text.remove_prefix(static_cast<size_t>(written));
                }
              },
          .is_terminal = is_terminal(STDERR_FILENO),
          .columns = [] { return terminal_columns(STDERR_FILENO); }};
}

Progress::Progress(int64_t steps, ProgressSink sink, int64_t first_step)
    : steps_(steps), first_step_(first_step), sink_(std::move(sink)) {}

Progress::~Progress() { finish(); }

void Progress::draw() {
  if (sink_.is_terminal) {
    // One column stays free: a cursor behind the last one makes some terminals begin a new line.
    sink_.write(
        fmt::format("\r{}{}", progress_line(*state_, steps_, first_step_, sink_.columns() - 1, true), erase_to_end));
    line_is_open_ = true;
  } else {
    sink_.write(progress_line(*state_, steps_, first_step_, std::numeric_limits<int>::max(), false) + "\n");
  }
  shown_step_ = state_->step;
  shown_seconds_ = state_->seconds;
}

void Progress::update(const ProgressState& state) {
  state_ = state;
  const int64_t interval = std::max<int64_t>(1, (steps_ + plain_lines - 1) / plain_lines);
  const bool edge = state.step == first_step_ + 1 || state.step == steps_;
  const bool due = sink_.is_terminal ? !line_is_open_ || state.seconds - shown_seconds_ >= redraw_seconds
                                     : state.step % interval == 0;
  if (edge || due) draw();
}

void Progress::finish() {
  if (state_ && shown_step_ != state_->step) draw();
  if (line_is_open_) sink_.write("\n");
  line_is_open_ = false;
}

}  // namespace shardpipe
