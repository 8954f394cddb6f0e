#include "model/blocks/blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "base/error.h"
#include "model/block_run.h"
#include "model/blocks/kinds.h"

namespace shardpipe {
namespace {

class Blocks : public testing::TestWithParam<BlockCase> {
 protected:
  BlockRun start(uint64_t seed, Recompute recompute = Recompute::None) const {
    return {model_, block_, GetParam().shape(), seed, recompute};
  }
  bool is_embedding() const { return block_.kind == BlockKind::Embedding; }

  const Model model_ = make_model(GetParam().model);
  const Block& block_ = model_.blocks[GetParam().block];
};

// d objective / dt at 0, where `values` move to values + t · direction: central differences at two steps, combined so
// that the error is of fourth order.
double slope(BlockRun& run, std::span<float> values, std::span<const float> direction) {
  const std::vector<float> start(values.begin(), values.end());
  const auto at = [&](float t) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = start[i] + t * direction[i];
    const double objective = run.objective();
    std::ranges::copy(start, values.begin());
    return objective;
  };
  constexpr float h = 0x1p-7f;
  return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * double{h});
}

// Along a random direction of ±1 the slope is gradient · direction, which is about as large as the gradient's length:
// so is what a wrong gradient would be off by.
void expect_slopes(BlockRun& run, std::span<float> values, std::span<const float> gradient, const std::string& name) {
  double length = 0;
  for (const float g : gradient) length += double{g} * double{g};
  length = std::sqrt(length);
  EXPECT_GT(length, 0) << name;
  std::mt19937 random(7);
  for (int repeat = 0; repeat < 4; ++repeat) {
    std::vector<float> direction(values.size());
    double expected = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      direction[i] = (random() & 1) != 0 ? 1.0f : -1.0f;
      expected += double{gradient[i]} * double{direction[i]};
    }
    EXPECT_NEAR(slope(run, values, direction), expected, 1e-3 * length) << name;
  }
}

class Fp32Blocks : public Blocks {};

TEST_P(Fp32Blocks, GradientsAreTheSlopes) {
  BlockRun run = start(1);
  run.run();
  const std::vector<std::vector<float>> gradients = run.gradients;
  const std::vector<float> input_gradient = run.input_gradient;
  for (size_t slot = 0; slot < block_.groups.size(); ++slot) {
    for (const Tensor& tensor : model_.groups[block_.groups[slot]].tensors) {
      expect_slopes(run, std::span(run.parameters[slot]).subspan(tensor.offset, tensor.elements),
                    std::span(gradients[slot]).subspan(tensor.offset, tensor.elements), tensor.name);
    }
  }
  if (!is_embedding()) expect_slopes(run, run.input, input_gradient, "input");
}

TEST_P(Blocks, TouchWhatTheyDeclareAndNothingElse) {
  BlockRun run = start(1);
  run.forward();
  EXPECT_TRUE(run.saved.is_used_to_the_end());
  run.backward_input();
  EXPECT_TRUE(run.between.is_used_to_the_end());
  run.backward_weight();
  for (WatchedMemory* memory : {&run.saved, &run.between, &run.workspace}) EXPECT_TRUE(memory->borders_are_whole());
  for (const std::vector<float>& gradient : run.gradients) {
    for (const float element : gradient) ASSERT_TRUE(std::isfinite(element));  // all of it is written
  }
}

// A zero-bubble schedule runs backward_weight much later: other micro-batches have passed, and the workspace, this
// block's output and its input gradient are long gone.
TEST_P(Blocks, BackwardWeightGivesTheSameBitsLater) {
  BlockRun at_once = start(1);
  at_once.run();

  BlockRun later = start(1), other = start(2);
  later.forward();
  other.forward();
  later.backward_input();
  EXPECT_TRUE(is_embedding() || same_bits(later.input_gradient, at_once.input_gradient));
  other.backward_input();
  other.backward_weight();
  later.workspace.fill_with_nans();
  std::ranges::fill(later.output, BlockRun::nan);
  std::ranges::fill(later.input_gradient, BlockRun::nan);
  later.backward_weight();
  for (size_t slot = 0; slot < block_.groups.size(); ++slot) {
    EXPECT_TRUE(same_bits(later.gradients[slot], at_once.gradients[slot]));
  }
}

// The forward's workspace, its output and its loss are gone when what it had is computed again.
TEST_P(Blocks, RecomputeGivesTheSameBitsAndTouchesWhatItDeclares) {
  BlockRun kept = start(1);
  kept.run();
  for (const Recompute recompute : {Recompute::Selective, Recompute::Full}) {
    BlockRun run = start(1, recompute);
    EXPECT_EQ(run.bytes.saved + run.bytes.recomputed, kept.bytes.saved);
    run.forward();
    EXPECT_TRUE(same_bits(run.output, kept.output));
    run.recomputed.fill_with_nans();
    run.workspace.fill_with_nans();
    std::ranges::fill(run.output, BlockRun::nan);
    run.loss = {.loss = -1, .tokens = -1};
    const std::vector<std::byte> saved(run.saved.data(), run.saved.data() + run.bytes.saved);
    run.compute_again();
    EXPECT_TRUE(std::ranges::equal(saved, std::span(run.saved.data(), run.bytes.saved)));
    EXPECT_TRUE(run.recomputed.is_used_to_the_end());
    EXPECT_TRUE(std::ranges::all_of(run.output, [](float x) { return std::isnan(x); }));
    EXPECT_EQ(run.loss.loss, -1);
    run.workspace.fill_with_nans();
    run.backward_input();
    EXPECT_TRUE(is_embedding() || same_bits(run.input_gradient, kept.input_gradient));
    run.workspace.fill_with_nans();
    run.backward_weight();
    for (size_t slot = 0; slot < block_.groups.size(); ++slot)
      EXPECT_TRUE(same_bits(run.gradients[slot], kept.gradients[slot]));
    for (WatchedMemory* memory : {&run.saved, &run.recomputed, &run.between, &run.workspace})
      EXPECT_TRUE(memory->borders_are_whole());
  }
}

TEST_P(Blocks, ForwardAgainGivesTheSameBits) {
  BlockRun run = start(1);
  run.forward();
  const std::vector<float> output = run.output;
  const LossSlot loss = run.loss;
  run.saved.fill_with_nans();
  run.workspace.fill_with_nans();
  run.forward();
  EXPECT_TRUE(same_bits(run.output, output));
  EXPECT_EQ(run.loss.loss, loss.loss);
  EXPECT_EQ(run.loss.tokens, loss.tokens);
}

TEST_P(Blocks, AccumulateAddsToWhatIsThere) {
  BlockRun first = start(1), second = start(2);
  second.parameters = first.parameters;
  first.run();
  second.run();
  BlockRun both = start(2);
  both.parameters = first.parameters;
  both.gradients = first.gradients;
  both.accumulate = {true, true};
  both.run();
  for (size_t slot = 0; slot < block_.groups.size(); ++slot) {
    float largest = 0;
    for (const float element : both.gradients[slot]) largest = std::max(largest, std::abs(element));
    for (size_t i = 0; i < both.gradients[slot].size(); ++i) {
      ASSERT_NEAR(both.gradients[slot][i], first.gradients[slot][i] + second.gradients[slot][i], 1e-6f * largest) << i;
    }
  }
}

TEST_P(Blocks, RefuseMoreTokensThanTheModelReads) {
  BlockRun run = start(1);
  BlockViews views = run.views();
  views.shape.sequence = model_.config.seq_len + 1;
  EXPECT_THROW(block_forward(model_, block_, views), InvariantError);
}

// Relative to the largest element: an element that is near 0 is all rounding.
double largest_difference(std::span<const float> found, std::span<const float> expected) {
  double largest = 0, difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(double{expected[i]}));
    const double apart = std::abs(double{found[i]} - double{expected[i]});
    if (!(apart <= difference)) difference = apart;  // NaN is kept
  }
  return largest == 0 ? difference : difference / largest;
}

class HalfBlocks : public Blocks {
 protected:
  BlockRun half_as_fp32(const BlockRun& half) const {
    BlockRun full(model_, block_, odd_shape, 1);
    full.parameters = half.parameters;
    full.input = half.input;
    full.output_gradient = half.output_gradient;
    return full;
  }
  double epsilon() const {
    return with_element(GetParam().dtype, []<Element T>() { return double{epsilon_of<T>}; });
  }
};

// The same values in both types: what differs is the rounding of what is kept between kernels.
TEST_P(HalfBlocks, GiveWhatFp32GivesWithinAFewRoundings) {
  BlockRun half = start(1), full = half_as_fp32(half);
  half.run();
  full.run();
  EXPECT_NEAR(half.loss.loss, full.loss.loss, epsilon() * full.loss.loss);
  EXPECT_EQ(half.loss.tokens, full.loss.tokens);
  if (block_.kind == BlockKind::Layer) {
    EXPECT_GE(largest_difference(half.output, full.output), epsilon() / 8) << "nothing was rounded";
  }
  if (block_.kind != BlockKind::Head) {
    EXPECT_LE(largest_difference(half.output, full.output), 2 * epsilon());
  }
  if (!is_embedding()) {
    EXPECT_LE(largest_difference(half.input_gradient, full.input_gradient), 2 * epsilon());
  }
  for (size_t slot = 0; slot < block_.groups.size(); ++slot) {
    for (const Tensor& tensor : model_.groups[block_.groups[slot]].tensors) {
      const auto of_tensor = [&](const BlockRun& run) {
        return std::span(run.gradients[slot]).subspan(tensor.offset, tensor.elements);
      };
      EXPECT_LE(largest_difference(of_tensor(half), of_tensor(full)), 2 * epsilon()) << tensor.name;
    }
  }
}

TEST_P(HalfBlocks, KeepHalfOfTheBytes) {
  const BlockBytes half = start(1).bytes, full = block_bytes(model_, block_, odd_shape);
  EXPECT_EQ(activation_bytes(model_, GetParam().shape()) * 2, activation_bytes(model_, odd_shape));
  if (is_embedding()) return;
  EXPECT_LT(half.saved, full.saved * 7 / 10);  // statistics stay fp32, and here they weigh more than in a real model
  EXPECT_LT(half.between, full.between);
}

// It has to be a power of two to give the same bits, times itself.
TEST_P(Blocks, LossScaleIsInEveryGradientOfTheHead) {
  BlockRun plain = start(1), scaled = start(1);
  scaled.loss_scale = 64.0f;
  plain.run();
  scaled.run();
  const double factor = block_.kind == BlockKind::Head ? 64 : 1;  // elsewhere it came with the output gradient
  const double rounding = GetParam().dtype == DType::Float16 ? 2 * 0x1p-10 : 0;  // subnormals
  EXPECT_EQ(scaled.loss.loss, plain.loss.loss) << "the loss itself is not scaled";
  const auto check = [&](std::span<const float> of_scaled, std::span<const float> of_plain) {
    std::vector<float> expected(of_plain.begin(), of_plain.end());
    for (float& value : expected) value *= static_cast<float>(factor);
    EXPECT_LE(largest_difference(of_scaled, expected), rounding);
  };
  if (!is_embedding()) check(scaled.input_gradient, plain.input_gradient);
  for (size_t slot = 0; slot < block_.groups.size(); ++slot) check(scaled.gradients[slot], plain.gradients[slot]);
}

constexpr auto name_of_case = [](const auto& tested) { return tested.param.name; };
INSTANTIATE_TEST_SUITE_P(Kinds, Blocks,
                         testing::ValuesIn(block_cases({DType::Float32, DType::BFloat16, DType::Float16})),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Kinds, Fp32Blocks, testing::ValuesIn(block_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Kinds, HalfBlocks, testing::ValuesIn(block_cases({DType::BFloat16, DType::Float16})),
                         name_of_case);

// A block with a tied group may overwrite one gradient and add to the other.
TEST(TiedBlocks, EachGroupAccumulatesByItsOwnFlag) {
  int tested = 0;
  for (const BlockCase& block_case : block_cases()) {
    const Model model = make_model(block_case.model);
    const Block& block = model.blocks[block_case.block];
    if (block.groups.size() < 2) continue;
    SCOPED_TRACE(block_case.name);
    ++tested;
    const auto gradients = [&](std::array<bool, 2> accumulate) {
      BlockRun run(model, block, odd_shape, 1);
      for (std::vector<float>& gradient : run.gradients) std::ranges::fill(gradient, 3.0f);
      run.accumulate = accumulate;
      run.run();
      return run.gradients;
    };
    const auto overwritten = gradients({false, false}), added = gradients({true, true});
    for (const size_t adds : {0, 1}) {
      const auto mixed = gradients({adds == 0, adds == 1});
      EXPECT_TRUE(same_bits(mixed[adds], added[adds]));
      EXPECT_TRUE(same_bits(mixed[1 - adds], overwritten[1 - adds]));
      EXPECT_FALSE(same_bits(mixed[adds], overwritten[adds]));
    }
  }
  EXPECT_EQ(tested, 3);  // GPT-2's embedding and head, Llama's head
}

// Another sample, step or seed, and no draw at all, which is an evaluation.
TEST(Dropout, DrawsByTheSampleTheStepAndTheSeed) {
  for (const BlockCase& block_case : block_cases()) {
    if (block_case.model.dropout == 0 || block_case.block == 2) continue;
    const Model model = make_model(block_case.model);
    const Block& block = model.blocks[block_case.block];
    const auto output = [&](const DropoutDraw& draw, uint64_t first_row, bool drops) {
      BlockRun run(model, block, odd_shape, 1);
      run.draw = draw;
      run.first_row = first_row;
      run.drops = drops;
      run.forward();
      return run.output;
    };
    const DropoutDraw draw{.seed = 5, .step = 9, .first_sample = 40};
    const std::vector<float> expected = output(draw, 3, true);
    EXPECT_TRUE(same_bits(output(draw, 3, true), expected));
    DropoutDraw other = draw;
    other.first_sample = 41;
    EXPECT_TRUE(same_bits(output(other, 2, true), expected)) << "the same samples, wherever they stand in a batch";
    EXPECT_FALSE(same_bits(output(draw, 4, true), expected));
    other = draw;
    other.step = 10;
    EXPECT_FALSE(same_bits(output(other, 3, true), expected));
    other = draw;
    other.seed = 6;
    EXPECT_FALSE(same_bits(output(other, 3, true), expected));
    EXPECT_FALSE(same_bits(output(draw, 3, false), expected));
  }
}

// One sample's masks in one step: of the layers, and of the two branches of a layer.
TEST(Dropout, DiffersBetweenLayersAndSites) {
  ModelConfig config = block_cases().front().model;  // GPT-2
  config.layers = 2;
  config.dropout = 0.5;
  const Model model = make_model(config);
  std::vector<std::vector<float>> outputs;
  for (const size_t b : {1, 2}) {
    BlockRun run(model, model.blocks[b], odd_shape, 1);
    // without input and weights a branch is its projection's bias of 1, which dropout makes 2 or 0
    std::ranges::fill(run.input, 0.0f);
    std::vector<float>& values = run.parameters.front();
    std::ranges::fill(values, 0.0f);
    size_t start = 0;
    for (const Tensor& tensor : model.groups[model.blocks[b].groups.front()].tensors) {
      if (tensor.name.ends_with("c_proj.bias"))
        std::fill_n(values.begin() + static_cast<int64_t>(start), tensor.elements, 1.0f);
      start += tensor.elements;
    }
    run.forward();
    for (const float sum_of_branches : {4.0f, 0.0f, 2.0f})  // both kept, none, one alone
      EXPECT_NE(std::ranges::count(run.output, sum_of_branches), 0) << sum_of_branches;
    outputs.push_back(run.output);
  }
  EXPECT_FALSE(same_bits(outputs[0], outputs[1]));

  std::set<std::pair<uint32_t, uint32_t>> keys;
  const DropoutDraw draw{};
  for (const Block& block : model.blocks)
    for (const DropoutSite site : {DropoutSite::Embedding, DropoutSite::Probabilities, DropoutSite::AttentionBranch,
                                   DropoutSite::FeedForwardBranch}) {
      if (block.kind == BlockKind::Head) continue;
      const kernels::DropoutKey key = dropout_key(block, {.shape = odd_shape, .dropout = &draw}, site);
      EXPECT_TRUE(keys.emplace(key.layer, key.site).second) << "layer " << key.layer << ", site " << key.site;
    }
}

TEST(Head, LossIsSummedOverCountedTargets) {
  const Model model = make_model(block_cases().front().model);
  BlockRun run(model, model.blocks.back(), odd_shape, 1);
  std::ranges::fill(run.parameters[1], 0.0f);  // equal logits: every token has the same probability
  run.forward();
  const auto counted =
      static_cast<double>(std::ranges::count_if(run.targets, [](int32_t target) { return target >= 0; }));
  EXPECT_LT(counted, static_cast<double>(run.targets.size()));
  EXPECT_EQ(run.loss.tokens, counted);
  EXPECT_NEAR(run.loss.loss, counted * std::log(37.0), 1e-5 * run.loss.loss);
}

}  // namespace
}  // namespace shardpipe
