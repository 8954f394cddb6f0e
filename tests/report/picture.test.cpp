// What a picture says: its figures, its text to the column, its SVG as boxes to scale.
#include "report/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <regex>
#include <sstream>

#include "base/error.h"
#include "report/table.h"

namespace shardpipe {
namespace {

using testing::HasSubstr;
using testing::Not;

PictureBox box(uint32_t row, double begin, double end, BoxKind kind, uint16_t micro_batch,
               BoxPart part = BoxPart::Whole) {
  return {.row = row, .begin = begin, .end = end, .kind = kind, .part = part, .micro_batch = micro_batch};
}

// 1F1B of two ranks and two micro-batches, forward 1, backward 2.
Picture two_by_two() {
  return {.name = "1f1b",
          .title = "1f1b: 2 ranks, 2 micro-batches",
          .costs = "Forward 1.",
          .rows = {{.label = "rank 0", .rank = 0}, {.label = "rank 1", .rank = 1}},
          .boxes = {box(0, 0, 1, BoxKind::Forward, 0), box(0, 1, 2, BoxKind::Forward, 1),
                    box(0, 4, 6, BoxKind::Backward, 0), box(0, 7, 9, BoxKind::Backward, 1),
                    box(1, 1, 2, BoxKind::Forward, 0), box(1, 2, 4, BoxKind::Backward, 0),
                    box(1, 4, 5, BoxKind::Forward, 1), box(1, 5, 7, BoxKind::Backward, 1)}};
}

std::string text_of(const Picture& picture, int columns, bool color = false) {
  return to_text(std::vector{picture}, {.columns = columns, .color = color});
}

TEST(PictureFigures, OfATinyPipelineByHand) {
  const PictureFigures figures = figures_of(two_by_two());
  EXPECT_EQ(figures.step, 9);
  EXPECT_DOUBLE_EQ(figures.bubble, 1.0 / 3);
  EXPECT_DOUBLE_EQ(figures.own_bubble, 1.0 / 3);
  EXPECT_EQ(figures.peak_micro_batches, 2);
  EXPECT_EQ(figures.rows[0].peak_micro_batches, 2);
  EXPECT_EQ(figures.rows[1].peak_micro_batches, 1);
  EXPECT_EQ(figures.rows[1].busy, 6);
}

TEST(PictureFigures, ActivationsAreHeldUntilTheWeightPartEnds) {
  Picture picture = two_by_two();
  picture.rows.pop_back();
  picture.boxes = {box(0, 0, 1, BoxKind::Forward, 0), box(0, 1, 2, BoxKind::BackwardInput, 0),
                   box(0, 2, 3, BoxKind::Forward, 1), box(0, 3, 4, BoxKind::BackwardWeight, 0)};
  EXPECT_EQ(figures_of(picture).peak_micro_batches, 2);
  picture.boxes[1].kind = BoxKind::Backward;
  picture.boxes.pop_back();
  EXPECT_EQ(figures_of(picture).peak_micro_batches, 1);
}

TEST(PictureFigures, AChunkOfTwoIsHalfAMicroBatch) {
  Picture picture = two_by_two();
  picture.chunks_of_rank = 2;
  EXPECT_EQ(figures_of(picture).peak_micro_batches, 1);
}

TEST(PictureFigures, TwoPassesAtOnceAreBusyOnce) {
  Picture picture = two_by_two();
  picture.rows.pop_back();
  picture.boxes = {box(0, 0, 3, BoxKind::Forward, 1, BoxPart::Upper),
                   box(0, 0, 3, BoxKind::Backward, 0, BoxPart::Lower), box(0, 4, 5, BoxKind::Forward, 2)};
  const PictureFigures figures = figures_of(picture);
  EXPECT_EQ(figures.rows[0].busy, 4);
  EXPECT_DOUBLE_EQ(figures.bubble, 0.2);
}

TEST(PictureFigures, WhatRanksDoNotShareAtTheEndsIsNoBubbleOfTheirOwn) {
  Picture picture = two_by_two();
  picture.boxes = {box(0, 0, 2, BoxKind::Forward, 0), box(1, 1, 3, BoxKind::Forward, 0)};
  const PictureFigures figures = figures_of(picture);
  EXPECT_DOUBLE_EQ(figures.bubble, 1.0 / 3);
  EXPECT_DOUBLE_EQ(figures.own_bubble, 0);
}

TEST(PictureFigures, NothingIsNothing) {
  const PictureFigures figures = figures_of({});
  EXPECT_EQ(figures.step, 0);
  EXPECT_EQ(figures.bubble, 0);
}

TEST(PictureFigures, WhatCannotBeDrawnIsRefused) {
  for (const PictureBox& wrong : {box(2, 0, 1, BoxKind::Forward, 0), box(0, 2, 1, BoxKind::Forward, 0),
                                  box(0, 0, std::numeric_limits<double>::infinity(), BoxKind::Forward, 0)}) {
    Picture picture = two_by_two();
    picture.boxes.push_back(wrong);
    EXPECT_THROW(figures_of(picture), InvariantError);
  }
}

TEST(TextPicture, IsToScaleAndSaysWhatItShows) {
  EXPECT_EQ(text_of(two_by_two(), 80),
            "1f1b: 2 ranks, 2 micro-batches\n"
            "Forward 1.\n"
            "\n"
            "time    0       2       4       6       8\n"
            "rank 0  F0- F1- ········B0----- ····B1-----\n"
            "rank 1  ····F0- B0----- F1- B1----- ········\n"
            "\n"
            "F3 forward   B3 backward   · idle\n"
            "The number is the micro-batch.\n"
            "\n"
            "        busy    idle  micro-batches held\n"
            "rank 0     6  33.3 %                   2\n"
            "rank 1     6  33.3 %                   1\n"
            "\n"
            "Each row is a rank, each box a pass over one micro-batch, and time runs to the\n"
            "right. Of the step's 9 units the ranks wait 33.3 %: the bubble. Rank 0 holds the\n"
            "activations of 2 micro-batches at once, the most of all.\n");
}

Picture long_one(uint16_t micro_batches) {
  Picture picture = two_by_two();
  picture.rows.pop_back();
  picture.boxes.clear();
  for (uint16_t m = 0; m < micro_batches; ++m) {
    picture.boxes.push_back(box(0, 3.0 * m, 3.0 * m + 1, BoxKind::Forward, m));
    picture.boxes.push_back(box(0, 3.0 * m + 1, 3.0 * m + 3, BoxKind::Backward, m));
  }
  return picture;
}

TEST(TextPicture, AStepThatIsTooLongGoesOnInTheNextBand) {
  const std::string text = text_of(long_one(20), 80);
  size_t bands = 0;
  for (size_t at = text.find("\ntime"); at != std::string::npos; at = text.find("\ntime", at + 1)) ++bands;
  EXPECT_EQ(bands, 3u);
  for (int m = 0; m < 20; ++m) {  // every number stands somewhere whole, whatever band's end cuts its box
    EXPECT_THAT(text, HasSubstr("F" + std::to_string(m)));
    EXPECT_THAT(text, HasSubstr("B" + std::to_string(m)));
  }
}

TEST(TextPicture, NoLineIsLongerThanItsTerminal) {
  Picture pair = long_one(500);
  pair.chunks_of_rank = 3;
  for (const int columns : {40, 60, 80, 133})
    for (const Picture& picture : {two_by_two(), long_one(7), long_one(20), long_one(500), pair}) {
      std::string text = text_of(picture, columns);
      if (columns >= 80) text += to_text(std::vector{picture, two_by_two()}, {.columns = columns, .color = false});
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        EXPECT_LE(text_columns(line), static_cast<size_t>(columns)) << line;
      }
    }
}

TEST(TextPicture, ColourChangesNoLetter) {
  for (const Picture& picture : {two_by_two(), long_one(20)}) {
    const std::string colored = text_of(picture, 80, true);
    EXPECT_NE(colored.find("\x1b["), std::string::npos);
    const std::string bare = std::regex_replace(colored, std::regex("\x1b\\[[0-9;]*m"), "");
    EXPECT_EQ(bare, text_of(picture, 80));
  }
}

TEST(TextPicture, PassesThatRunTogetherAreJoined) {
  Picture picture = two_by_two();
  picture.chunks_of_rank = 2;
  picture.rows.pop_back();
  picture.boxes = {box(0, 0, 1, BoxKind::Forward, 0), box(0, 1, 4, BoxKind::Forward, 3, BoxPart::Upper),
                   box(0, 1, 4, BoxKind::Backward, 0, BoxPart::Lower)};
  picture.boxes[2].chunk_of_rank = 1;
  const std::string text = text_of(picture, 80);
  EXPECT_THAT(text, HasSubstr("F0- F3++++b0---\n"));
  EXPECT_THAT(text, HasSubstr("joined by + run at the same time"));
}

TEST(TextPicture, WorkForTheWholeStepHasNoNumber) {
  Picture picture = two_by_two();
  picture.boxes.insert(picture.boxes.begin() + 4, box(0, 9, 10, BoxKind::Other, no_micro_batch));
  EXPECT_THAT(text_of(picture, 80), HasSubstr("B1----- O--\n"));
  EXPECT_THAT(text_of(picture, 80), HasSubstr("B3 backward   O other work"));
  EXPECT_EQ(figures_of(picture).step, 9) << "passes alone are the step";
  EXPECT_EQ(to_svg(std::vector{picture}).find("65535"), std::string::npos);
  EXPECT_EQ(trace_spans(picture, 1)[4].name, "other work");
}

TEST(TextPicture, AMessageThatTakesForEverStillGivesAPicture) {
  Picture picture = two_by_two();
  picture.boxes.back().begin = 1e12;
  picture.boxes.back().end = 1e12 + 2;
  EXPECT_LT(text_of(picture, 80).size(), 100'000u);
}

TEST(TextPicture, AComparisonEndsInATable) {
  Picture other = two_by_two();
  other.name = "other";
  const std::string text = to_text(std::vector{two_by_two(), other}, {});
  EXPECT_THAT(text, HasSubstr("schedule  chunks  step  bubble  held  of 1f1b's p\n"
                              "1f1b           1     9  33.3 %     2         1.00\n"
                              "other          1     9  33.3 %     2         1.00\n"));
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(SvgPicture, HasABoxAPassToScale) {
  const std::string svg = to_svg(std::vector{two_by_two()});
  EXPECT_EQ(count(svg, "<g><title>"), 8u);
  EXPECT_THAT(svg, HasSubstr("<title>rank 1: backward of micro-batch 1, chunk 0, 5 to 7</title>"));
  const std::regex rectangle("<rect x=\"([0-9.]+)\" y=\"[0-9.]+\" width=\"([0-9.]+)\" height=\"22\" fill");
  std::vector<std::pair<double, double>> boxes;
  for (std::sregex_iterator at(svg.begin(), svg.end(), rectangle), end; at != end; ++at)
    boxes.emplace_back(std::stod((*at)[1]), std::stod((*at)[2]));
  ASSERT_EQ(boxes.size(), 8u);
  EXPECT_NEAR(boxes[2].second, 2 * boxes[0].second, 0.02);
  EXPECT_NEAR(boxes[2].first - boxes[0].first, 4 * boxes[0].second, 0.05);
}

TEST(SvgPicture, NumbersThatDoNotFitAreLeftOut) {
  EXPECT_EQ(count(to_svg(std::vector{two_by_two()}), "class=\"n"), 8u);
  EXPECT_EQ(count(to_svg(std::vector{long_one(4000)}), "class=\"n"), 0u);
}

TEST(SvgPicture, AnyBytesInATitleAreValidXml) {
  Picture picture = two_by_two();
  picture.title = "a<b & \"c\" \x01 \xFF é \xE6\xBC";
  const std::string svg = to_svg(std::vector{picture});
  EXPECT_THAT(svg, HasSubstr("a&lt;b &amp; &quot;c&quot;   \uFFFD é \uFFFD\uFFFD"));
  EXPECT_THAT(svg, Not(HasSubstr("script")));
}

TEST(SvgPicture, TwoAtOnceShareAnOutline) {
  Picture picture = two_by_two();
  picture.boxes = {box(0, 0, 3, BoxKind::Forward, 1, BoxPart::Upper),
                   box(0, 0, 3, BoxKind::Backward, 0, BoxPart::Lower)};
  const std::string svg = to_svg(std::vector{picture});
  EXPECT_EQ(count(svg, "class=\"pair\""), 1u);
  EXPECT_EQ(count(svg, "height=\"11\" fill"), 2u);
}

TEST(PictureTrace, IsATrackARankWithChunkAndMicroBatch) {
  const Picture picture = two_by_two();
  const std::vector<TraceSpan> spans = trace_spans(picture, 1e-3);
  ASSERT_EQ(spans.size(), 8u);
  EXPECT_EQ(spans[3].name, "B 1");
  EXPECT_EQ(spans[3].category, "backward");
  EXPECT_EQ(spans[3].rank, 0);
  EXPECT_DOUBLE_EQ(spans[3].begin_seconds, 7e-3);
  EXPECT_EQ(spans[3].args["micro_batch"], 1);
  EXPECT_EQ(spans[3].args["chunk"], 0);
}

TEST(PictureTrace, TwoAtOnceHaveATrackEach) {
  Picture picture = two_by_two();
  picture.boxes = {box(0, 0, 3, BoxKind::Forward, 1, BoxPart::Upper),
                   box(0, 0, 3, BoxKind::Backward, 0, BoxPart::Lower)};
  const std::vector<TraceSpan> spans = trace_spans(picture, 1e-3);
  EXPECT_NE(spans[0].track_index, spans[1].track_index);
}

TEST(PictureWords, NumbersAreShort) {
  EXPECT_EQ(short_number(33), "33");
  EXPECT_EQ(short_number(0.5), "0.5");
  EXPECT_EQ(short_number(26.25), "26.25");
  EXPECT_EQ(short_number(18522.4), "18522");
  EXPECT_EQ(percent(0.27272), "27.3 %");
  EXPECT_EQ(percent(-1e-17), "0.0 %");
}

}  // namespace
}  // namespace shardpipe
