#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "model/block_run.h"
#include "model/blocks/blocks.h"

namespace shardpipe {
namespace {

std::vector<float> whole(const ParameterGroup& group, uint64_t seed) {
  std::vector<float> values(group.elements);
  initialise(group, seed, 0, group.elements, values.data());
  return values;
}

TEST(Initialise, AnyCutGivesTheBitsOfTheWhole) {
  const unsigned random_seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "random seed " << random_seed);
  std::mt19937 random(random_seed);
  for (const char* preset : {"gpt2-tiny", "llama-tiny"}) {
    for (const ParameterGroup& group : make_model(model_preset(preset)).groups) {
      const std::vector<float> expected = whole(group, 5);
      std::vector<float> pieces;
      while (pieces.size() < group.elements) {
        const uint64_t count = std::min<uint64_t>(1 + random() % 5000, group.elements - pieces.size());
        std::vector<float> piece(count);
        initialise(group, 5, pieces.size(), count, piece.data());
        pieces.insert(pieces.end(), piece.begin(), piece.end());
      }
      EXPECT_TRUE(same_bits(pieces, expected)) << group.name;
    }
  }
}

TEST(Initialise, PaddingIsZero) {
  const Model model = make_model(model_preset("gpt2-tiny"));
  const ParameterGroup& group = model.groups[1];
  std::vector<float> end(20, 1.0f), beyond(5, 1.0f);
  initialise(group, 5, group.elements - 10, 20, end.data());
  initialise(group, 5, group.elements + 3, 5, beyond.data());
  EXPECT_NE(end[9], 0.0f);
  for (size_t i = 10; i < 20; ++i) EXPECT_EQ(end[i], 0.0f);
  for (const float element : beyond) EXPECT_EQ(element, 0.0f);
}

// Computed apart from this code: ten rounds of Philox 4x32 that agree with the known answers of its paper's library.
TEST(Initialise, StartingValuesStayWhatTheyAre) {
  const Model model = make_model(model_preset("gpt2-tiny"));
  const std::vector<float> values = whole(model.groups[1], 1234567890123456789u);
  const double expected[] = {0.011031977154876046,  -0.011609317401222799,  -0.013003434664534014,
                             -0.025406307053754542, -0.0022669108570398883, 0.001973284781028089};
  for (size_t i = 0; i < std::size(expected); ++i) EXPECT_FLOAT_EQ(values[i], static_cast<float>(expected[i])) << i;
}

TEST(Initialise, SeedAndNameDecide) {
  const Model model = make_model(model_preset("llama-tiny"));
  const ParameterGroup& group = model.groups[1];
  const std::vector<float> values = whole(group, 5);
  EXPECT_FALSE(same_bits(values, whole(group, 6)));
  EXPECT_FALSE(same_bits(values, whole(group, uint64_t{5} << 32)));
  const auto first = [&](size_t tensor) { return values[group.tensors[tensor].offset]; };
  EXPECT_NE(first(2), first(3));  // k_proj and v_proj: of one shape
  EXPECT_FALSE(same_bits(values, whole(model.groups[2], 5)));
}

// A million numbers: mean, variance and the share beyond two deviations, each within six of its own deviations.
TEST(Initialise, ValuesAreNormal) {
  ParameterGroup group{.name = "group", .tensors = {}};
  group.elements = 1'000'000;
  group.tensors.push_back({.name = "tensor",
                           .shape = {1000, 1000},
                           .offset = 0,
                           .elements = group.elements,
                           .decays = true,
                           .initial = {Initial::Kind::Normal, 0.5f}});
  double sum = 0, squares = 0, neighbours = 0, beyond = 0, before = 0;
  for (const float value : whole(group, 9)) {
    const double normal = double{value} / 0.5;
    sum += normal;
    squares += normal * normal;
    neighbours += normal * before;
    beyond += std::abs(normal) > 2 ? 1 : 0;
    before = normal;
  }
  EXPECT_NEAR(sum / 1e6, 0, 6e-3);
  EXPECT_NEAR(squares / 1e6, 1, 6 * std::sqrt(2.0) * 1e-3);
  EXPECT_NEAR(neighbours / 1e6, 0, 6e-3);
  EXPECT_NEAR(beyond / 1e6, std::erfc(std::sqrt(2.0)), 6 * 0.21e-3);
}

TEST(Initialise, GainsAreOnesBiasesZerosAndResidualProjectionsSmaller) {
  for (const char* preset : {"gpt2-tiny", "llama-tiny"}) {
    const Model model = make_model(model_preset(preset));
    const ParameterGroup& layer = model.groups[model.blocks[1].groups[0]];
    const std::vector<float> values = whole(layer, 5);
    for (const Tensor& tensor : layer.tensors) {
      double squares = 0;
      for (uint64_t i = 0; i < tensor.elements; ++i) squares += std::pow(double{values[tensor.offset + i]}, 2);
      const double deviation = std::sqrt(squares / static_cast<double>(tensor.elements));
      const bool is_residual = tensor.name.ends_with("c_proj.weight") || tensor.name.ends_with("o_proj.weight") ||
                               tensor.name.ends_with("down_proj.weight");
      if (tensor.shape.size() == 2) {
        const double expected = 0.02 / (is_residual ? std::sqrt(8.0) : 1.0);  // 4 layers
        EXPECT_NEAR(deviation, expected, 0.1 * expected) << tensor.name;
      } else {
        const float expected = tensor.name.ends_with("weight") ? 1.0f : 0.0f;
        for (uint64_t i = 0; i < tensor.elements; ++i) ASSERT_EQ(values[tensor.offset + i], expected) << tensor.name;
      }
    }
  }
}

}  // namespace
}  // namespace shardpipe
