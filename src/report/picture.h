// A pipeline step as a picture: a row a rank, a box a pass. One type for schedules, simulated and measured steps, so
// that all are drawn by the same code: as text, as SVG and as spans of a trace.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "report/perfetto.h"

namespace shardpipe {

enum class BoxKind : uint8_t {
  Forward,
  Recompute,
  Backward,
  BackwardInput,
  BackwardWeight,
  Transfer,
  Collective,
  Other
};
inline constexpr size_t box_kinds = 8;
constexpr bool is_pass(BoxKind kind) { return kind <= BoxKind::BackwardWeight; }

// Two passes that run together are two boxes of the same times, one above the other in one outline.
enum class BoxPart : uint8_t { Whole, Upper, Lower };

inline constexpr uint16_t no_micro_batch = 0xFFFF;  // of work for the whole step: drawn without a number

struct PictureBox {
  uint32_t row = 0;
  double begin = 0, end = 0;  // in the picture's unit; end >= begin, both finite
  BoxKind kind{};
  BoxPart part = BoxPart::Whole;  // an Upper is followed by its Lower, in the same row
  uint16_t chunk = 0;             // of the whole pipeline, as the schedule numbers them
  uint16_t chunk_of_rank = 0;     // 0, 1 …: which of its rank's chunks
  uint16_t micro_batch = 0;
};

struct PictureRow {
  std::string label;  // "rank 3"
  uint32_t rank = 0;
  bool thin = false;  // of what runs beside the passes: sends, gathers. Takes no part in the figures
};

struct Picture {
  std::string name;             // "1f1b": what a table calls it
  std::string title;            // "1f1b: 4 ranks, 8 micro-batches"
  std::string costs;            // what the passes take, in words; may be empty
  std::string unit = "units";   // of time, as a plural: "units", "ms"
  uint16_t chunks_of_rank = 1;  // at most
  std::vector<PictureRow> rows;
  std::vector<PictureBox> boxes;  // of a row: ascending in time
};

struct RowFigures {
  double busy = 0;                // time in which a pass runs
  double idle_share = 0;          // of the step
  double peak_micro_batches = 0;  // most activations held at once; those of one chunk of v are 1/v of a micro-batch
};

struct PictureFigures {
  double step = 0;        // from the first begin of a pass to the last end
  double bubble = 0;      // share of the ranks' time in which they wait
  double own_bubble = 0;  // the same within the longest span that a rank has from its own first pass to its own last:
                          // what papers count where ranks start and end a step without waiting for each other
  double peak_micro_batches = 0;
  std::vector<RowFigures> rows;  // as the picture's; nothing for thin ones
};

// Activations live from the begin of the forward to the end of the last backward part. InvariantError for boxes that
// end before they begin or belong to no row.
PictureFigures figures_of(const Picture&);

// What the reader sees, in sentences.
std::string in_words(const Picture&, const PictureFigures&);

// A number of time or a count, as short as four digits allow: 33, 0.5, 18.52, 18522.
std::string short_number(double);
std::string percent(double share);  // 27.3 %

struct TextStyle {
  int columns = 80;    // of the terminal; at least 40 are used
  bool color = false;  // ANSI, 256 colours
};

// The pictures one below the other on one time scale, legend and figures. To scale; where the step is longer than the
// line it goes on in further bands.
std::string to_text(std::span<const Picture> pictures, const TextStyle& style);

// The same as an SVG file: valid XML, no script, nothing fetched.
std::string to_svg(std::span<const Picture> pictures);

// For to_chrome_trace: a track a row, "F 3" with chunk and micro-batch. seconds_per_unit: how long a unit is shown.
std::vector<TraceSpan> trace_spans(const Picture& picture, double seconds_per_unit);

}  // namespace shardpipe
