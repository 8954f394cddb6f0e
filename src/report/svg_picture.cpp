// Pictures as SVG: plain shapes and text, sizes in pixels.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "report/picture.h"
#include "report/picture_style.h"
#include "report/table.h"

namespace shardpipe {
namespace {

constexpr double row_height = 22, row_gap = 4, thin_height = 8;
constexpr double margin = 16, line_height = 17;
constexpr double character = 7;        // width of a letter of the 12 px text, on the safe side
constexpr double box_character = 5.4;  // of the numbers in boxes
// The shortest pass gets 20 px, in long steps 14, which still hold a number of two digits.
constexpr double narrowest_plot = 560, roomy_plot = 1000, widest_plot = 3000;
constexpr size_t most_tooltips = 4000;  // beyond, they would be most of the file

// How many bytes from the front are one UTF-8 character; 0: none is there.
size_t utf8_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t length = first < 0x80   ? 1
                        : first < 0xC2 ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  if (length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  return length;
}

// Any bytes become text that XML allows.
std::string escaped(std::string_view text) {
  std::string result;
  for (size_t length = 0; !text.empty(); text.remove_prefix(std::max<size_t>(length, 1))) {
    const char c = text[0];
    length = utf8_length(text);
    if (length != 1) {
      result += length == 0 ? std::string_view("\uFFFD") : text.substr(0, length);
      continue;
    }
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '"')
      result += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20)
      result += ' ';
    else
      result += c;
  }
  return result;
}

std::string hex(Rgb color) { return fmt::format("#{:02x}{:02x}{:02x}", color.red, color.green, color.blue); }

// A length or place without needless digits.
std::string px(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

struct Chart {
  double left = 0;        // of the plot
  double plot_width = 0;  // of the longest picture
  double px_per_unit = 1;
  double width = 0;  // of the whole image
};

class Writer {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), text, std::forward<Args>(args)...);
  }
  void text(double x, double y, std::string_view css, std::string_view words) {
    add("<text x=\"{}\" y=\"{}\" class=\"{}\">{}</text>\n", px(x), px(y), css, escaped(words));
  }
  std::string body() && { return std::move(body_); }

 private:
  std::string body_;
};

double step_of(const Picture& picture) {
  double last = first_begin(picture);
  for (const PictureBox& box : picture.boxes) last = std::max(last, box.end);
  return last - first_begin(picture);
}

Chart chart_for(std::span<const Picture> pictures) {
  double longest = 0;
  size_t label = 4;
  for (const Picture& picture : pictures) {
    longest = std::max(longest, step_of(picture));
    for (const PictureRow& row : picture.rows) label = std::max(label, text_columns(row.label));
  }
  Chart chart;
  chart.left = margin + static_cast<double>(label) * character + 8;
  const double shortest = shortest_pass(pictures);
  chart.plot_width = narrowest_plot;
  if (shortest > 0) {
    const double passes = longest / shortest;
    const double most = std::clamp(passes * 14, roomy_plot, widest_plot);
    chart.plot_width = std::clamp(passes * 20, narrowest_plot, most);
  }
  if (longest > 0) chart.px_per_unit = chart.plot_width / longest;
  chart.width = chart.left + chart.plot_width + 130;  // two columns of figures at the right
  return chart;
}

double height_of(const PictureRow& row) { return (row.thin ? thin_height : row_height) + row_gap; }

void add_box(Writer& svg, const Picture& picture, const PictureBox& box, const Chart& chart, double first, double top,
             bool with_tooltip) {
  const double left = chart.left + (box.begin - first) * chart.px_per_unit;
  const double width = (box.end - box.begin) * chart.px_per_unit;
  if (width <= 0) return;
  const bool thin = picture.rows[box.row].thin;
  const bool whole = box.part == BoxPart::Whole;
  const double full = thin ? thin_height : row_height;
  const double height = whole ? full : full / 2;
  const double y = box.part == BoxPart::Lower ? top + height : top;
  const Rgb fill = color_of(box.kind, box.chunk_of_rank, picture.chunks_of_rank);
  const bool numbered = box.micro_batch != no_micro_batch;
  if (with_tooltip) {
    const std::string work =
        numbered ? fmt::format(" of micro-batch {}, chunk {}", box.micro_batch, box.chunk) : std::string();
    svg.add("<g><title>{}</title>",
            escaped(fmt::format("{}: {}{}, {} to {}", picture.rows[box.row].label, style_of(box.kind).name, work,
                                short_number(box.begin - first), short_number(box.end - first))));
  }
  svg.add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"{}/>", px(left), px(y), px(width), px(height),
          hex(fill), whole ? " class=\"box\"" : "");
  const std::string number = fmt::format("{}", box.micro_batch);
  if (!thin && numbered && static_cast<double>(number.size()) * box_character <= width)
    svg.add("<text x=\"{}\" y=\"{}\" class=\"n{}{}\">{}</text>", px(left + width / 2), px(y + height / 2 + 3.5),
            whole ? "" : " h", wants_white_text(fill) ? " w" : "", number);
  svg.add("{}\n", with_tooltip ? "</g>" : "");
  if (box.part == BoxPart::Lower)  // one outline around both
    svg.add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"pair\"/>\n", px(left), px(top), px(width),
            px(full));
}

double add_axis(Writer& svg, const Picture& picture, double step, const Chart& chart, double top, double bottom) {
  const double tick = round_step(56 / chart.px_per_unit);
  for (int i = 0; i * tick <= step * (1 + 1e-9); ++i) {
    const double x = chart.left + i * tick * chart.px_per_unit;
    svg.add("<line x1=\"{0}\" y1=\"{1}\" x2=\"{0}\" y2=\"{2}\" class=\"tick\"/>\n", px(x), px(top), px(bottom + 3));
    svg.text(x, bottom + 15, "t m s", short_number(i * tick));
  }
  svg.text(chart.left - 8, bottom + 15, "t e s", picture.unit == "units" ? "time" : "time, " + picture.unit);
  return bottom + 22;
}

// The rows of one picture from `top` on, and their axis; returns where they end.
double add_rows(Writer& svg, const Picture& picture, const PictureFigures& figures, const Chart& chart, double top,
                bool tooltips) {
  const double step = step_of(picture);
  const double figures_at = chart.left + chart.plot_width + 56;
  std::vector<double> tops;
  double y = top;
  for (size_t row = 0; row < picture.rows.size(); ++row) {
    const bool thin = picture.rows[row].thin;
    tops.push_back(y);
    svg.add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"idle\"/>\n", px(chart.left), px(y),
            px(step * chart.px_per_unit), px(thin ? thin_height : row_height));
    svg.text(chart.left - 8, y + (thin ? thin_height : row_height) / 2 + 4, thin ? "t e s" : "t e",
             picture.rows[row].label);
    if (!thin) {
      svg.text(figures_at, y + row_height / 2 + 4, "t e", percent(figures.rows[row].idle_share));
      svg.text(figures_at + 56, y + row_height / 2 + 4, "t e", short_number(figures.rows[row].peak_micro_batches));
    }
    y += height_of(picture.rows[row]);
  }
  const double axis = add_axis(svg, picture, step, chart, top, y - row_gap);  // its lines behind the boxes
  const double first = first_begin(picture);
  for (const PictureBox& box : picture.boxes) add_box(svg, picture, box, chart, first, tops[box.row], tooltips);
  return axis;
}

double add_legend(Writer& svg, std::span<const Picture> pictures, const Chart& chart, double y) {
  std::map<BoxKind, int> kinds;  // and the most chunks of a rank that it is drawn for
  int chunks = 1;
  bool together = false;
  for (const Picture& picture : pictures) {
    chunks = std::max<int>(chunks, picture.chunks_of_rank);
    for (const PictureBox& box : picture.boxes) {
      int& most = kinds[box.kind];
      most = std::max(most, box.chunk_of_rank + 1);
      together = together || box.part != BoxPart::Whole;
    }
  }
  double x = margin;
  const auto advance = [&](double width) {
    if (x > margin && x + width > chart.width - margin) {
      x = margin;
      y += line_height + 4;
    }
  };
  const auto entry = [&](const std::string& words, const std::vector<Rgb>& colors, bool is_idle) {
    const double swatches = 14.0 * static_cast<double>(std::max<size_t>(colors.size(), 1));
    const double width = swatches + 6 + static_cast<double>(text_columns(words)) * character + 14;
    advance(width);
    double at = x;
    for (const Rgb color : colors) {
      svg.add("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"12\" fill=\"{}\" class=\"box\"/>\n", px(at), px(y - 10),
              hex(color));
      at += 14;
    }
    if (is_idle) svg.add("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"12\" class=\"idle\"/>\n", px(at), px(y - 10));
    svg.text(x + swatches + 6, y, "t", words);
    x += width;
  };
  for (const auto& [kind, of_kind] : kinds) {
    const int shown = std::min(of_kind, 4);
    std::vector<Rgb> colors;
    for (int i = 0; i < shown; ++i) colors.push_back(color_of(kind, i, shown));
    entry(std::string(style_of(kind).name), colors, false);
  }
  entry("idle", {}, true);
  std::string note = "number: micro-batch";
  if (chunks > 1) note += "; lighter: a later chunk of the rank";
  if (together) note += "; two in one outline run at the same time";
  advance(static_cast<double>(text_columns(note)) * character);
  svg.text(x, y, "t", note);
  return y + line_height;
}

double add_words(Writer& svg, std::string_view words, const Chart& chart, double y) {
  const auto columns = static_cast<size_t>((chart.width - 2 * margin) / (character - 1));
  std::string line;
  const auto flush = [&] {
    svg.text(margin, y, "t", line);
    y += line_height;
    line.clear();
  };
  while (!words.empty()) {
    const std::string_view word = take_word(words);
    if (!line.empty() && text_columns(line) + 1 + text_columns(word) > columns) flush();
    line += line.empty() ? "" : " ";
    line += word;
  }
  if (!line.empty()) flush();
  return y;
}

constexpr std::string_view style_sheet =
    "text{font-family:system-ui,\"Helvetica Neue\",Arial,\"DejaVu Sans\",sans-serif}"
    ".title{font-size:15px;font-weight:600;fill:#111}"
    ".t{font-size:12px;fill:#222}.s{font-size:11px;fill:#555}"
    ".e{text-anchor:end}.m{text-anchor:middle}"
    ".n{font-size:9.5px;text-anchor:middle;fill:#111}.w{fill:#fff}.h{font-size:9px}"
    ".box{stroke:#333;stroke-width:.5}.pair{fill:none;stroke:#111;stroke-width:1.4}"
    ".idle{fill:#ececec;stroke:none}.tick{stroke:#999;stroke-width:.6;stroke-dasharray:1 3}";

}  // namespace

std::string to_svg(std::span<const Picture> pictures) {
  const Chart chart = chart_for(pictures);
  size_t boxes = 0;
  for (const Picture& picture : pictures) boxes += picture.boxes.size();
  Writer svg;
  double y = margin + 12;
  for (const Picture& picture : pictures) {
    const PictureFigures figures = figures_of(picture);
    svg.text(margin, y, "title", picture.title);
    y += line_height;
    if (pictures.size() > 1) {
      const auto ranks = std::ranges::count_if(picture.rows, [](const PictureRow& row) { return !row.thin; });
      std::string line = fmt::format("step {}, bubble {}", short_number(figures.step), percent(figures.bubble));
      if (figures.bubble - figures.own_bubble > 5e-4)
        line += fmt::format(" ({} where no rank waits at the ends of a step)", percent(figures.own_bubble));
      line += fmt::format("; micro-batches held: {}, {:.2f} of 1f1b's p", short_number(figures.peak_micro_batches),
                          figures.peak_micro_batches / static_cast<double>(ranks));
      svg.text(margin, y, "t", line);
      y += line_height;
    }
    if (pictures.size() > 1) y -= line_height;  // in the line of the figures
    const double figures_at = chart.left + chart.plot_width + 56;
    svg.text(figures_at, y, "t e s", "idle");
    svg.text(figures_at + 56, y, "t e s", "held");
    y += 6;
    y = add_rows(svg, picture, figures, chart, y, boxes <= most_tooltips) + 18;
  }
  if (!pictures.empty()) {
    y = add_legend(svg, pictures, chart, y) + 4;
    if (pictures.size() == 1) y = add_words(svg, in_words(pictures.front(), figures_of(pictures.front())), chart, y);
    y = add_words(svg,
                  pictures.front().costs + (pictures.front().costs.empty() ? "" : " ") +
                      "Held: the most micro-batches whose activations a rank keeps at once.",
                  chart, y);
  }
  const std::string title = pictures.empty() ? "no picture" : pictures.front().title;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\">\n"
      "<title>{2}</title>\n<style>{3}</style>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n{4}</svg>\n",
      px(std::ceil(chart.width)), px(std::ceil(y)), escaped(title), style_sheet, std::move(svg).body());
}

}  // namespace shardpipe
