// verify finds nothing where there is nothing, and names one flipped bit wherever it falls.
#include "train/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "equivalence/tiny.h"
#include "kernels/cpu/cross_entropy.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

RunConfig short_run(const ModelConfig& model, const Layout& layout) {
  RunConfig config = tiny_run(model, layout);
  config.steps = 3;
  return config;
}

Verification verify(const RunConfig& config, const Disturb& disturb = nullptr) {
  return verify_layout(config, random_samples(config.seed, config.model.vocab_size), disturb);
}

TEST(Verify, FindsLayoutsEqual) {
  ModelConfig tied_llama = tiny_llama();
  tied_llama.tied_embeddings = true;
  for (const ModelConfig& model : {tiny_gpt2(), tiny_llama(), tied_llama})
    for (const int zero : {0, 1, 2, 3})
      for (const ReduceEvery reduce_every : {ReduceEvery::Step, ReduceEvery::Micro})
        for (const auto& [pp, dp] : {std::pair<int64_t, int64_t>{1, 1}, {1, 2}, {3, 1}, {2, 2}}) {
          const RunConfig config = short_run(model, tiny_layout(pp, dp, zero, 2, reduce_every));
          const Verification result = verify(config);
          EXPECT_TRUE(result.equal) << "pp " << pp << " dp " << dp << " zero " << zero << ": "
                                    << result.first_difference;
          EXPECT_EQ(result.first_difference, "");
          EXPECT_EQ(result.steps, 3);
          uint64_t tensors = 0;
          const Model made = make_model(model);
          for (const ParameterGroup& group : made.groups) tensors += group.tensors.size();
          EXPECT_EQ(result.tensors, tensors);
          // Of each step at least an activation and its gradient a micro-batch, replica and boundary of blocks.
          EXPECT_GE(result.values, static_cast<uint64_t>(3 * 2 * 2 * dp * 5));
        }
}

TEST(Verify, TakesStepsWithoutTargets) {
  const RunConfig config = short_run(tiny_gpt2(), tiny_layout(2, 2, 3, 2, ReduceEvery::Micro));
  const SampleSource all = random_samples(7, 65);
  const Verification result = verify_layout(config, [&](int64_t sample, auto inputs, auto targets) {
    all(sample, inputs, targets);
    if (sample / 4 == 1) std::ranges::fill(targets, kernels::ignored_target);
  });
  EXPECT_TRUE(result.equal) << result.first_difference;
}

struct Place {
  int world_rank;
  int64_t step;
  Kind kind;
  Role role;  // of the value that the action has written
  uint16_t index, micro_batch;
  size_t element;  // of that buffer
};

// Flips the last bit of the mantissa.
Disturb flip(const Place& place) {
  return [place](int world_rank, int64_t step, const Action& action, const RankProgram& rank, std::byte* arena) {
    if (world_rank != place.world_rank || step != place.step || action.kind != place.kind) return;
    for (const Use& use : uses_of(rank, action)) {
      const Buffer& buffer = rank.buffers[use.buffer];
      if (use.access == Access::Read || buffer.role != place.role || buffer.index != place.index ||
          buffer.micro_batch != place.micro_batch)
        continue;
      float& value = reinterpret_cast<float*>(arena + buffer.offset)[place.element];
      value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ 1u);
    }
  };
}

uint16_t group_named(const Model& model, const std::string& name) {
  const auto found = std::ranges::find(model.groups, name, &ParameterGroup::name);
  return static_cast<uint16_t>(found - model.groups.begin());
}

// Two stages (embedding, layers 0 and 1; layers 2 and 3, head) and two replicas: rank 2·stage + replica.
class VerifyDisturbed : public testing::Test {
 protected:
  VerifyDisturbed() { config_.layout.stages = {3, 3}; }
  std::string difference(const Place& place) const {
    const Verification result = verify(config_, flip(place));
    EXPECT_FALSE(result.equal);
    return result.first_difference;
  }
  RunConfig config_ = short_run(tiny_gpt2(), tiny_layout(2, 2, 3, 2, ReduceEvery::Micro));
  Model model_ = make_model(config_.model);
};

TEST_F(VerifyDisturbed, NamesTheActivation) {
  EXPECT_THAT(difference({1, 2, Kind::Forward, Role::Activation, 2, 1, 37}),
              AllOf(StartsWith("step 2: the input of layer 1, micro-batch 1 of replica 1, element 37: "),
                    HasSubstr(" 1 ULPs apart; 1 of 512 elements there differ")));
}

TEST_F(VerifyDisturbed, NamesTheGradientOfAnActivation) {
  EXPECT_THAT(
      difference({3, 1, Kind::Backward, Role::ActivationGradient, 4, 0, 511}),
      AllOf(StartsWith("step 1: the gradient of the input of layer 3, micro-batch 0 of replica 1, element 511: "),
            HasSubstr(" 1 ULPs apart; 1 of 512 elements")));
}

TEST_F(VerifyDisturbed, NamesTheGradientOfAWeight) {
  const uint16_t group = group_named(model_, "layer 2");
  // The third tensor of a layer is the attention's matrix: element 3 of it.
  const Tensor& tensor = model_.groups[group].tensors[2];
  EXPECT_THAT(
      difference({2, 3, Kind::Backward, Role::Gradient, group, 1, tensor.offset + 3}),
      AllOf(StartsWith("step 3: the gradient of h.2.attn.c_attn.weight, micro-batch 1 of replica 0, element 3: "),
            HasSubstr(" 1 ULPs apart; 1 of ")));
}

TEST_F(VerifyDisturbed, NamesTheReducedGradient) {
  const uint16_t group = group_named(model_, "layer 0");
  const Shards cut = shards(model_.groups[group].elements, 2);
  const Tensor& tensor = model_.groups[group].tensors.back();  // of the second shard
  ASSERT_GT(tensor.offset, cut.shard_elements);
  // Before the norm, after the last micro-batch's reduction.
  Place place{1, 2, Kind::Reduce, Role::Gradient, group, none, tensor.offset + 5 - cut.shard_elements};
  const Verification result = verify(config_, [flipped = flip(place)](int rank, int64_t step, const Action& action,
                                                                      const RankProgram& program, std::byte* arena) {
    if (action.micro_batch == 1) flipped(rank, step, action, program, arena);
  });
  EXPECT_THAT(result.first_difference, AllOf(StartsWith("step 2: the gradient of h.0.mlp.c_proj.bias, element 5: "),
                                             HasSubstr(" 1 ULPs apart; 1 of ")));
}

TEST_F(VerifyDisturbed, NamesTheWeight) {
  const uint16_t group = group_named(model_, "head");
  EXPECT_THAT(difference({2, 2, Kind::OptimizerStep, Role::Shard, group, none, 9}),
              AllOf(StartsWith("step 2: the weights ln_f.weight, element 9: "), HasSubstr(" 1 ULPs apart; 1 of ")));
}

// Where every replica holds all weights, one that goes astray ends the run by itself; what went astray first is told.
TEST_F(VerifyDisturbed, NamesTheWeightOfOneReplicaOfSeveralThatHoldIt) {
  for (const int zero : {0, 1, 2}) {
    config_.layout.zero = zero;
    const uint16_t group = group_named(model_, "layer 3");
    const size_t element = model_.groups[group].tensors[2].offset + 1;  // of the first shard
    EXPECT_THAT(
        difference({zero == 0 ? 3 : 2, 2, Kind::OptimizerStep, Role::Parameters, group, none, element}),
        AllOf(StartsWith("step 2: the weights h.3.attn.c_attn.weight, element 1: "), HasSubstr(" 1 ULPs apart; 1 of ")))
        << "zero " << zero;
  }
}

TEST_F(VerifyDisturbed, NamesTheReducedGradientOfOneReplica) {
  config_.layout.zero = 0;
  config_.layout.reduce_every = ReduceEvery::Step;
  const uint16_t group = group_named(model_, "layer 1");
  EXPECT_THAT(difference({1, 1, Kind::Reduce, Role::Gradient, group, none, 4}),
              AllOf(StartsWith("step 1: the gradient of h.1.ln_1.weight, element 4: "), HasSubstr(" 1 ULPs apart")));
}

TEST(UlpsBetween, CountsTheFloatsOnTheWay) {
  const float one = 1.0f, above = std::nextafter(one, 2.0f), tiny = std::numeric_limits<float>::denorm_min();
  constexpr float infinity = std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::max();
  EXPECT_EQ(ulps_between(one, one), 0u);
  EXPECT_EQ(ulps_between(one, above), 1u);
  EXPECT_EQ(ulps_between(above, one), 1u);
  EXPECT_EQ(ulps_between(-one, -above), 1u);
  EXPECT_EQ(ulps_between(1.0f, 2.0f), uint64_t{1} << 23);
  EXPECT_EQ(ulps_between(0.0f, 0.0f), 0u);
  EXPECT_EQ(ulps_between(-0.0f, 0.0f), 1u);
  EXPECT_EQ(ulps_between(0.0f, tiny), 1u);
  EXPECT_EQ(ulps_between(-0.0f, -tiny), 1u);
  EXPECT_EQ(ulps_between(-tiny, tiny), 3u);
  EXPECT_EQ(ulps_between(most, infinity), 1u);
  EXPECT_EQ(ulps_between(-infinity, -most), 1u);
  EXPECT_EQ(ulps_between(-infinity, infinity), 2 * uint64_t{0x7F800000} + 1);
}

}  // namespace
}  // namespace shardpipe
