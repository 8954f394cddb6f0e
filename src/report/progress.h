// How far a run is: one line that is redrawn in place on a terminal, some twenty plain lines in a file or a pipe.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace shardpipe {

struct ProgressState {
  int64_t step = 0;  // done
  double loss = 0;
  std::optional<double> val_loss;  // the newest
  double tokens_per_second = 0;
  uint64_t peak_bytes = 0;  // of the rank that needs most
  double seconds = 0;       // since the run began
};

// Where progress goes. `write` must not throw; `columns` is asked before each redraw, since windows change their size.
struct ProgressSink {
  std::function<void(std::string_view)> write;
  bool is_terminal = false;
  std::function<int()> columns = [] { return 80; };
};
ProgressSink stderr_sink();

// Used by one thread at a time.
class Progress {
 public:
  // first_step: steps that an earlier run had done, for the time that is left.
  Progress(int64_t steps, ProgressSink sink, int64_t first_step = 0);
  ~Progress();  // finishes
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(const ProgressState&);
  // Leaves the last state on a line of its own: call it before anything else is printed there. Later updates are
  // shown again.
  void finish();

 private:
  void draw();
  int64_t steps_, first_step_;
  ProgressSink sink_;
  std::optional<ProgressState> state_;
  int64_t shown_step_ = -1;    // of the newest line
  double shown_seconds_ = 0;   // when it was drawn
  bool line_is_open_ = false;  // the cursor stands in a line that we drew
};

// The line for at most `columns` columns: what matters least is left out first. Never longer, whatever the state.
std::string progress_line(const ProgressState&, int64_t steps, int64_t first_step, int columns, bool with_bar);

}  // namespace shardpipe
