#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "layout/layout.h"

namespace shardpipe {
namespace {

Model gpt2_with(int64_t layers, int64_t vocab_size) {
  ModelConfig config = model_preset("gpt2-tiny");
  config.layers = layers;
  config.vocab_size = vocab_size;
  return make_model(config);
}

struct Cut {
  double slowest = 0, sum_of_squares = 0;
};

Cut measure(const Model& model, const std::vector<int64_t>& stages, MicroBatchShape shape) {
  Cut cut;
  size_t block = 0;
  for (const int64_t count : stages) {
    double cost = 0;
    for (int64_t i = 0; i < count; ++i) cost += forward_flops(model, model.blocks[block++], shape);
    cut.slowest = std::max(cut.slowest, cost);
    cut.sum_of_squares += cost * cost;
  }
  return cut;
}

// Every way to write `blocks` as a sum of `pp` numbers >= 1, in order.
void for_each_cut(int64_t blocks, int64_t pp, std::vector<int64_t>& stages,
                  const std::function<void(const std::vector<int64_t>&)>& visit) {
  if (pp == 1) {
    stages.push_back(blocks);
    visit(stages);
    stages.pop_back();
    return;
  }
  for (int64_t first = 1; first <= blocks - pp + 1; ++first) {
    stages.push_back(first);
    for_each_cut(blocks - first, pp - 1, stages, visit);
    stages.pop_back();
  }
}

// The vocabulary sets how heavy the head is beside a layer: from light to heavier than all layers.
TEST(Balance, NoCutHasAFasterSlowestStageOrIsMoreEven) {
  const MicroBatchShape shape{.batch = 2, .sequence = 16};
  for (const int64_t vocab_size : {2, 300, 1000, 5000, 100'000}) {
    for (const int64_t layers : {1, 4, 7}) {
      const Model model = gpt2_with(layers, vocab_size);
      const auto blocks = static_cast<int64_t>(model.blocks.size());
      for (int64_t pp = 1; pp <= blocks; ++pp) {
        Cut best{1e300, 1e300};
        std::vector<int64_t> scratch;
        for_each_cut(blocks, pp, scratch, [&](const std::vector<int64_t>& stages) {
          const Cut cut = measure(model, stages, shape);
          if (std::pair(cut.slowest, cut.sum_of_squares) < std::pair(best.slowest, best.sum_of_squares)) best = cut;
        });
        const Cut found = measure(model, balanced_stages(model, pp, shape), shape);
        const std::string layout = fmt::format("layers {} vocabulary {} pp {}", layers, vocab_size, pp);
        EXPECT_EQ(found.slowest, best.slowest) << layout;
        EXPECT_LE(found.sum_of_squares, best.sum_of_squares * (1 + 1e-12)) << layout;
      }
    }
  }
}

// 30 layers on 4 stages must not become 28.
TEST(Balance, LosesNoBlockWhereLayersDoNotDivide) {
  for (const int64_t layers : {1, 5, 30, 31}) {
    const Model model = gpt2_with(layers, 256);
    for (int64_t pp = 1; pp <= layers + 2; ++pp) {
      const std::vector<int64_t> stages = balanced_stages(model, pp, {.batch = 1, .sequence = 64});
      EXPECT_EQ(std::ssize(stages), pp);
      EXPECT_EQ(std::reduce(stages.begin(), stages.end()), layers + 2);
      EXPECT_GE(*std::ranges::min_element(stages), 1);
    }
  }
}

TEST(Balance, RefusesACutThatCannotBe) {
  const Model model = gpt2_with(2, 256);
  EXPECT_THROW(balanced_stages(model, 0, {.batch = 1, .sequence = 8}), InvariantError);
  EXPECT_THROW(balanced_stages(model, 5, {.batch = 1, .sequence = 8}), InvariantError);
}

}  // namespace
}  // namespace shardpipe
