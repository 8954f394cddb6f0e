// A measured step is drawn by the code that draws a schedule: same boxes, same figures.
#include "train/step_picture.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/rank.h"
#include "layout/layout.h"
#include "model/shape/model.h"

namespace shardpipe {
namespace {

// Every action takes a millisecond, one after the other.
std::vector<Timeline> one_after_the_other(const Program& program) {
  std::vector<Timeline> timelines;
  double now = 5;
  for (const RankProgram& rank : program.by_pipeline_rank) {
    Timeline& timeline = timelines.emplace_back();
    for (size_t i = 0; i < rank.actions.size(); ++i, now += 1e-3) timeline.push_back({now, now + 1e-3});
  }
  return timelines;
}

Step step_of(int64_t pp, int64_t micro_batches, int zero) {
  static const Model model = make_model(model_preset("gpt2-tiny"));
  Layout layout;
  layout.pp = pp;
  layout.zero = zero;
  layout.dp = zero > 0 ? 2 : 1;
  layout.global_batch_size = micro_batches * layout.dp;
  return make_step(model, layout, 2);
}

size_t count(const Picture& picture, uint32_t rank, BoxKind kind) {
  size_t found = 0;
  for (const PictureBox& box : picture.boxes) found += picture.rows[box.row].rank == rank && box.kind == kind ? 1u : 0u;
  return found;
}

TEST(StepPicture, TheBlocksOfACellAreOneBox) {
  const Step step = step_of(2, 3, 0);
  const std::vector<Timeline> timelines = one_after_the_other(step.training);
  const Picture picture = picture_of(step.training, step.shape.first_block, timelines, "1f1b, measured");
  ASSERT_EQ(picture.rows.size(), 2u);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(count(picture, rank, BoxKind::Forward), 3u);
    EXPECT_EQ(count(picture, rank, BoxKind::Backward), 3u);
  }
  EXPECT_EQ(count(picture, 0, BoxKind::Other), 1u) << "norm, clip and optimizer, in one piece";
  EXPECT_EQ(picture.title, "1f1b, measured: 2 ranks, 3 micro-batches");
  const PictureFigures figures = figures_of(picture);
  EXPECT_EQ(figures.rows[0].peak_micro_batches, 2);
  EXPECT_EQ(figures.rows[1].peak_micro_batches, 1);
}

TEST(StepPicture, OtherLanesAreThinRowsBelowTheirRank) {
  const Step step = step_of(2, 2, 3);
  const std::vector<Timeline> timelines = one_after_the_other(step.training);
  const Picture hidden = picture_of(step.training, step.shape.first_block, timelines, "x");
  const Picture shown = picture_of(step.training, step.shape.first_block, timelines, "x", OtherLanes::Shown);
  EXPECT_EQ(hidden.rows.size(), 2u);
  EXPECT_GT(shown.rows.size(), 2u);
  EXPECT_FALSE(shown.rows[0].thin);
  EXPECT_TRUE(shown.rows[1].thin);
  EXPECT_GT(count(shown, 0, BoxKind::Collective), count(hidden, 0, BoxKind::Collective));
  EXPECT_EQ(figures_of(hidden).bubble, figures_of(shown).bubble);
}

TEST(StepPicture, ATimelineOfAnotherProgramIsRefused) {
  const Step step = step_of(2, 2, 0);
  std::vector<Timeline> timelines = one_after_the_other(step.training);
  timelines[1].pop_back();
  EXPECT_THROW(picture_of(step.training, step.shape.first_block, timelines, "x"), InvariantError);
  timelines.pop_back();
  EXPECT_THROW(picture_of(step.training, step.shape.first_block, timelines, "x"), InvariantError);
}

}  // namespace
}  // namespace shardpipe
