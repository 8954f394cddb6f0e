// Pictures for a terminal. Time is laid on columns, whole ones a pass, and the columns are cut into bands that fit a
// line.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "report/picture.h"
#include "report/picture_style.h"
#include "report/table.h"

namespace shardpipe {
namespace {

constexpr int idle = -1;

// One column of one row: what stands there, and in which of the picture's colours.
struct Glyph {
  char letter = ' ';
  int color = idle;  // kind * chunks + chunk of the rank
};

// Chunks are told apart by case while there are two, by a letter at the end where there are more.
std::string full_label(const PictureBox& box, int chunks) {
  const char letter = style_of(box.kind).letter;
  if (box.micro_batch == no_micro_batch) return std::string(1, letter);
  if (chunks > 2)
    return fmt::format("{}{}{}", letter, box.micro_batch, static_cast<char>('a' + box.chunk_of_rank % 26));
  return fmt::format("{}{}", box.chunk_of_rank == 1 ? static_cast<char>(letter - 'A' + 'a') : letter, box.micro_batch);
}

std::string short_label(const PictureBox& box, int chunks) {
  const char first = full_label(box, chunks)[0];
  if (box.micro_batch == no_micro_batch) return std::string(1, first);
  return fmt::format("{}{}", first, box.micro_batch % 10);
}

std::string label_for(const PictureBox& box, int chunks, size_t room) {
  if (std::string label = full_label(box, chunks); label.size() <= room) return label;
  if (std::string label = short_label(box, chunks); label.size() <= room) return label;
  return room == 0 ? "" : short_label(box, chunks).substr(0, 1);
}

struct Scale {
  double columns_per_unit = 1;
  size_t area = 0;   // columns of a band, without the rows' labels
  size_t total = 0;  // columns of the longest picture
};

double step_of(const Picture& picture) {
  double last = first_begin(picture);
  for (const PictureBox& box : picture.boxes) last = std::max(last, box.end);
  return last - first_begin(picture);
}

Scale scale_for(std::span<const Picture> pictures, size_t room) {
  constexpr size_t most_bands = 12, hopeless_bands = 100;
  double longest = 0;
  size_t label = 1;
  for (const Picture& picture : pictures) {
    longest = std::max(longest, step_of(picture));
    for (const PictureBox& box : picture.boxes)
      if (!picture.rows[box.row].thin) label = std::max(label, full_label(box, picture.chunks_of_rank).size());
  }
  const double shortest = shortest_pass(pictures);
  if (shortest <= 0) return {1, room, 1};
  const auto columns = [&](size_t a_pass) {
    return static_cast<size_t>(std::ceil(std::min(longest / shortest, 1e9) * static_cast<double>(a_pass) - 1e-6));
  };
  size_t a_pass = label + 2;  // wider boxes say no more
  while (a_pass > label && columns(a_pass) > room) --a_pass;
  // In several bands: whole numbers if that is not too long to look at, else their last digit, else letters.
  if (columns(a_pass) > room * most_bands && label > 2) a_pass = 2;
  if (columns(a_pass) > room * most_bands) a_pass = 1;
  Scale scale{static_cast<double>(a_pass) / shortest, room, columns(a_pass)};
  if (longest / shortest > static_cast<double>(room * hopeless_bands)) {  // one long wait: passes become specks
    scale.total = room * hopeless_bands;
    scale.columns_per_unit = static_cast<double>(scale.total) / longest;
    return scale;
  }
  if (scale.total <= room) {
    scale.area = std::max<size_t>(scale.total, 1);
  } else {  // bands of equal length that end between two of the shortest passes
    const size_t bands = (scale.total + room - 1) / room;
    scale.area = std::min((scale.total + bands - 1) / bands + a_pass - 1, room) / a_pass * a_pass;
    if (scale.area * bands < scale.total) scale.area = room / a_pass * a_pass;
  }
  return scale;
}

size_t column_of(double time, const Scale& scale) {
  return static_cast<size_t>(std::lround(std::max(0.0, time) * scale.columns_per_unit));
}

using Rows = std::vector<std::vector<Glyph>>;

// A box that a band's end cuts has its label in the first part with room for it, else in its longest part.
void draw(std::vector<Glyph>& row, size_t begin, size_t end, const PictureBox& box, const Picture& picture,
          size_t area) {
  struct Part {
    size_t begin, end;
  };
  std::vector<Part> parts;
  for (size_t at = begin; at < end;) {
    const size_t until = std::min(end, (at / area + 1) * area);
    parts.push_back({at, until});
    at = until;
  }
  const size_t wanted = full_label(box, picture.chunks_of_rank).size();
  const auto length = [](const Part& part) { return part.end - part.begin; };
  auto labelled = std::ranges::find_if(parts, [&](const Part& part) { return length(part) >= wanted; });
  if (labelled == parts.end()) labelled = std::ranges::max_element(parts, {}, length);
  const int color = static_cast<int>(box.kind) * picture.chunks_of_rank + box.chunk_of_rank;
  const bool joined = box.part == BoxPart::Upper;  // what follows runs at the same time
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    const std::string label = part == labelled ? label_for(box, picture.chunks_of_rank, length(*part)) : std::string();
    for (size_t i = 0; i < length(*part); ++i)
      row[part->begin + i] = {i < label.size() ? label[i] : joined ? '+' : '-', color};
    const bool ends = part + 1 == parts.end();
    if (ends && !joined && length(*part) > std::max<size_t>(label.size(), 1)) row[part->end - 1] = {' ', idle};
  }
}

Rows draw_rows(const Picture& picture, const Scale& scale) {
  const double first = first_begin(picture);
  const size_t total = std::max(column_of(step_of(picture), scale), size_t{1});
  Rows rows(picture.rows.size(), std::vector<Glyph>(total, Glyph{'.', idle}));
  for (const PictureBox& box : picture.boxes) {
    size_t begin = column_of(box.begin - first, scale), end = column_of(box.end - first, scale);
    // Two at a time stand side by side in their common outline.
    if (box.part == BoxPart::Upper) end = begin + (end - begin) / 2;
    if (box.part == BoxPart::Lower) begin += (end - begin) / 2;
    draw(rows[box.row], begin, std::min(end, total), box, picture, scale.area);
  }
  return rows;
}

// The nearest of the 216 colours that every terminal with 256 has.
int ansi_color(Rgb color) {
  const auto level = [](int channel) { return channel < 48 ? 0 : channel < 115 ? 1 : (channel - 35) / 40; };
  return 16 + 36 * level(color.red) + 6 * level(color.green) + level(color.blue);
}

std::string escape_of(int color, const Picture& picture) {
  if (color == idle) return "\x1b[0m";
  const int chunks = picture.chunks_of_rank;
  const Rgb background = color_of(static_cast<BoxKind>(color / chunks), color % chunks, chunks);
  return fmt::format("\x1b[0;38;5;{};48;5;{}m", wants_white_text(background) ? 231 : 16, ansi_color(background));
}

std::string line_of(std::span<const Glyph> glyphs, const Picture& picture, bool color) {
  std::string line;
  int current = idle;
  for (const Glyph& glyph : glyphs) {
    if (color && glyph.color != current) line += escape_of(current = glyph.color, picture);
    line += glyph.letter == '.' ? "·" : std::string(1, glyph.letter);
  }
  if (current != idle) line += escape_of(idle, picture);
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

// "0        5        10": a number begins in the column of its time.
std::string ruler(size_t begin, size_t end, const Scale& scale) {
  const double tick = round_step(8 / scale.columns_per_unit);
  std::string line;
  for (auto i = static_cast<int64_t>(std::ceil(static_cast<double>(begin) / scale.columns_per_unit / tick - 1e-6));;
       ++i) {
    const size_t column = column_of(static_cast<double>(i) * tick, scale);
    if (column > end) break;
    if (column < begin) continue;
    const std::string number = short_number(static_cast<double>(i) * tick);
    if (column - begin + number.size() > scale.area || (!line.empty() && column - begin < line.size() + 1)) continue;
    line.resize(column - begin, ' ');
    line += number;
  }
  return line;
}

size_t label_width(std::span<const Picture> pictures) {
  size_t width = 4;  // "time"
  for (const Picture& picture : pictures)
    for (const PictureRow& row : picture.rows) width = std::max(width, text_columns(row.label));
  return width + 2;
}

std::string bands_of(const Picture& picture, const Scale& scale, size_t labels, bool color) {
  const Rows rows = draw_rows(picture, scale);
  const size_t total = rows.empty() ? 0 : rows.front().size();
  std::string text;
  for (size_t begin = 0; begin < total; begin += scale.area) {
    const size_t end = std::min(begin + scale.area, total);
    if (begin > 0) text += "\n";
    text += fmt::format("{:<{}}{}\n", "time", labels, ruler(begin, end, scale));
    for (size_t row = 0; row < rows.size(); ++row) {
      const std::string padding(labels - text_columns(picture.rows[row].label), ' ');
      text += picture.rows[row].label + padding +
              line_of(std::span(rows[row]).subspan(begin, end - begin), picture, color) + "\n";
    }
  }
  return text;
}

// Words over as many lines as they need.
std::string wrapped(std::string_view text, size_t columns) {
  std::string result, line;
  while (!text.empty()) {
    const std::string_view word = take_word(text);
    if (!line.empty() && text_columns(line) + 1 + text_columns(word) > columns) {
      result += line + "\n";
      line = word;
    } else {
      line += line.empty() ? "" : " ";
      line += word;
    }
  }
  return line.empty() ? result : result + line + "\n";
}

std::string legend(std::span<const Picture> pictures, const Scale& scale, const TextStyle& style, size_t columns) {
  std::set<BoxKind> kinds;
  int chunks = 1;
  bool numbers_are_cut = false, together = false;
  const Picture* with_most = &pictures.front();
  for (const Picture& picture : pictures) {
    if (picture.chunks_of_rank > chunks) with_most = &picture;
    chunks = std::max<int>(chunks, picture.chunks_of_rank);
    for (const PictureBox& box : picture.boxes) {
      kinds.insert(box.kind);
      together = together || box.part != BoxPart::Whole;
      const auto width = static_cast<size_t>(std::lround((box.end - box.begin) * scale.columns_per_unit));
      numbers_are_cut = numbers_are_cut || (box.part == BoxPart::Whole &&
                                            full_label(box, picture.chunks_of_rank).size() > width && width > 0);
    }
  }
  // Escapes take no columns, so the line is put together by hand.
  std::string text, line;
  size_t used = 0;
  const auto add = [&](const std::string& entry, size_t width) {
    if (used > 0 && used + 3 + width > columns) {
      text += line + "\n";
      line.clear();
      used = 0;
    }
    line += (used > 0 ? "   " : "") + entry;
    used += (used > 0 ? 3 : 0) + width;
  };
  for (const BoxKind kind : kinds) {
    const std::string sample = fmt::format("{}{}", style_of(kind).letter, is_pass(kind) ? "3" : "");
    const int color = static_cast<int>(kind) * with_most->chunks_of_rank;
    const std::string shown =
        style.color ? escape_of(color, *with_most) + sample + escape_of(idle, *with_most) : sample;
    add(fmt::format("{} {}", shown, style_of(kind).name), sample.size() + 1 + style_of(kind).name.size());
  }
  add("· idle", 6);
  text += line + "\n";
  std::string notes = "The number is the micro-batch";
  notes += numbers_are_cut ? ", its last digit where a box has no room." : ".";
  if (chunks == 2) notes += " Capitals are the first chunk of a rank, small letters its second.";
  if (chunks > 2) notes += " The small letter, where there is room, is the chunk of its rank: a is the first.";
  if (together) notes += " Passes joined by + run at the same time.";
  return text + wrapped(notes, columns);
}

std::string rows_table(const Picture& picture, const PictureFigures& figures) {
  Table table{.header = {"", "busy", "idle", "micro-batches held"}, .rows = {}};
  std::vector<std::pair<std::string, std::vector<std::string>>> lines;  // the first and the last label, the figures
  for (size_t row = 0; row < picture.rows.size();) {
    const auto cells = [&](size_t r) {
      return std::vector<std::string>{short_number(figures.rows[r].busy), percent(figures.rows[r].idle_share),
                                      short_number(figures.rows[r].peak_micro_batches)};
    };
    size_t last = row;
    if (picture.rows[row].thin) {
      ++row;
      continue;
    }
    while (last + 1 < picture.rows.size() && !picture.rows[last + 1].thin && cells(last + 1) == cells(row)) ++last;
    std::vector<std::string> line = cells(row);
    line.insert(line.begin(), last == row
                                  ? picture.rows[row].label
                                  : fmt::format("ranks {} to {}", picture.rows[row].rank, picture.rows[last].rank));
    table.rows.push_back(std::move(line));
    row = last + 1;
  }
  return to_text(table);
}

std::string comparison(std::span<const Picture> pictures, size_t columns) {
  std::vector<PictureFigures> figures;
  for (const Picture& picture : pictures) figures.push_back(figures_of(picture));
  const bool own_bubbles =
      std::ranges::any_of(figures, [](const PictureFigures& of) { return of.bubble - of.own_bubble > 5e-4; });
  Table table{.header = {"schedule", "chunks", "step", "bubble", "held", "of 1f1b's p"}, .rows = {}};
  if (own_bubbles) table.header.insert(table.header.begin() + 4, "own bubble");
  for (size_t i = 0; i < pictures.size(); ++i) {
    const Picture& picture = pictures[i];
    const auto ranks = std::ranges::count_if(picture.rows, [](const PictureRow& row) { return !row.thin; });
    std::vector<std::string>& row = table.rows.emplace_back(
        std::vector<std::string>{picture.name, fmt::format("{}", picture.chunks_of_rank), short_number(figures[i].step),
                                 percent(figures[i].bubble), short_number(figures[i].peak_micro_batches),
                                 fmt::format("{:.2f}", figures[i].peak_micro_batches / static_cast<double>(ranks))});
    if (own_bubbles) row.insert(row.begin() + 4, percent(figures[i].own_bubble));
  }
  std::string notes = "Held: the most micro-batches whose activations a rank keeps at once.";
  if (own_bubbles) notes += " Own bubble: where a rank need not wait for the others at the ends of a step.";
  return to_text(table) + "\n" + wrapped(notes, columns);
}

}  // namespace

std::string to_text(std::span<const Picture> pictures, const TextStyle& style) {
  if (pictures.empty()) return "";
  const auto columns = static_cast<size_t>(std::max(style.columns, 40));
  const size_t labels = label_width(pictures);
  const Scale scale = scale_for(pictures, columns - std::min(labels, columns - 20));
  std::string text;
  for (const Picture& picture : pictures) {
    const PictureFigures figures = figures_of(picture);
    text += wrapped(pictures.size() == 1 ? picture.title
                                         : fmt::format("{}; step {}, bubble {}", picture.title,
                                                       short_number(figures.step), percent(figures.bubble)),
                    columns);
    if (pictures.size() == 1) text += wrapped(picture.costs, columns);
    text += "\n" + bands_of(picture, scale, labels, style.color) + "\n";
  }
  text += legend(pictures, scale, style, columns) + "\n";
  if (pictures.size() > 1)
    return text + wrapped(pictures.front().costs, columns) + "\n" + comparison(pictures, columns);
  const PictureFigures figures = figures_of(pictures.front());
  return text + rows_table(pictures.front(), figures) + "\n" + wrapped(in_words(pictures.front(), figures), columns);
}

}  // namespace shardpipe
