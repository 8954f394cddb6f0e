// What the text and the SVG of a picture have in common: letters, names and colours.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "report/picture.h"

namespace shardpipe {

struct Rgb {
  int red = 0, green = 0, blue = 0;
};

// Colours of Okabe and Ito, which colour-blind people can tell apart; forward, backward, input and weight part also
// differ in lightness (46, 71, 62, 90 of 100; a forward again 81), so that a grey print still tells them apart.
struct KindStyle {
  char letter;
  std::string_view name;
  Rgb color;
};
inline constexpr std::array<KindStyle, box_kinds> kind_styles{{
    {'F', "forward", {0x00, 0x72, 0xB2}},
    {'R', "forward again", {0x9A, 0xD0, 0xF5}},
    {'B', "backward", {0xE6, 0x9F, 0x00}},
    {'I', "backward, input part", {0xCC, 0x79, 0xA7}},
    {'W', "backward, weight part", {0xF0, 0xE4, 0x42}},
    {'T', "transfer", {0x00, 0x9E, 0x73}},
    {'C', "collective", {0x80, 0x80, 0x80}},
    {'O', "other work", {0xC0, 0xC0, 0xC0}},
}};
inline const KindStyle& style_of(BoxKind kind) { return kind_styles[static_cast<size_t>(kind)]; }

// The first chunk of a rank has the pure colour, later ones are lighter.
inline Rgb color_of(BoxKind kind, int chunk_of_rank, int chunks_of_rank) {
  const Rgb pure = style_of(kind).color;
  const double white = chunks_of_rank < 2 ? 0 : 0.62 * chunk_of_rank / (chunks_of_rank - 1);
  const auto mix = [&](int channel) { return static_cast<int>(std::lround(channel + (255 - channel) * white)); };
  return {mix(pure.red), mix(pure.green), mix(pure.blue)};
}

// WCAG's relative luminance decides; dark text has the better contrast on all but the darkest boxes.
inline bool wants_white_text(Rgb color) {
  const auto linear = [](int channel) { return std::pow(channel / 255.0, 2.2); };
  const double luminance = 0.2126 * linear(color.red) + 0.7152 * linear(color.green) + 0.0722 * linear(color.blue);
  return luminance < 0.179;
}

// 1, 2 or 5 times a power of ten, at least `least`.
inline double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1, 2, 5})
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

// The shortest pass that is drawn wide enough for its label: those below a quarter of the longest are left to chance,
// else one costless weight part would stretch the picture without end.
inline double shortest_pass(std::span<const Picture> pictures) {
  double longest = 0;
  for (const Picture& picture : pictures)
    for (const PictureBox& box : picture.boxes)
      if (!picture.rows[box.row].thin) longest = std::max(longest, box.end - box.begin);
  double shortest = longest;
  for (const Picture& picture : pictures)
    for (const PictureBox& box : picture.boxes)
      if (!picture.rows[box.row].thin && box.part == BoxPart::Whole && box.end - box.begin >= longest / 4 * (1 - 1e-9))
        shortest = std::min(shortest, box.end - box.begin);
  return shortest;
}

// Takes the next word off the front of a sentence; a number and its percent sign are one word.
inline std::string_view take_word(std::string_view& text) {
  size_t end = std::min(text.find(' '), text.size());
  while (end + 1 < text.size() && text[end + 1] == '%') end = std::min(text.find(' ', end + 1), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

inline double first_begin(const Picture& picture) {
  double first = picture.boxes.empty() ? 0 : picture.boxes.front().begin;
  for (const PictureBox& box : picture.boxes) first = std::min(first, box.begin);
  return first;
}

}  // namespace shardpipe
