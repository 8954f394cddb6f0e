// The trainer against PyTorch: from the golden's parameters, on its data, in a layout with everything and in the
// plainest.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "equivalence/gradients.h"
#include "parity/goldens.h"

namespace shardpipe {
namespace {

constexpr double allowed = 1e-5;  // relative

class TrainerParity : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  const Golden golden_ = read_golden(std::get<0>(GetParam()));
  RunConfig config_ = config_of(golden_, std::get<1>(GetParam()));

  static RunConfig config_of(const Golden& golden, bool spread) {
    RunConfig config;
    config.model = golden.model;
    config.optimizer = golden.optimizer;
    config.optimizer.lr_schedule = LrSchedule::Constant;
    config.optimizer.min_lr = 0;
    config.steps = golden.steps;
    config.layout = {.pp = spread ? 2 : 1,
                     .dp = spread ? 2 : 1,
                     .zero = spread ? 3 : 0,
                     .micro_batch_size = spread ? 2 : golden.batch,
                     .global_batch_size = golden.batch,
                     .reduce_every = spread ? ReduceEvery::Micro : ReduceEvery::Step,
                     .stages = {}};
    return config;
  }

  SampleSource samples() const {
    return [this](int64_t sample, std::span<int32_t> inputs, std::span<int32_t> targets) {
      const auto first = static_cast<size_t>(sample * golden_.model.seq_len);
      std::ranges::copy(std::span(golden_.tokens).subspan(first, inputs.size()), inputs.begin());
      std::ranges::copy(std::span(golden_.targets).subspan(first, targets.size()), targets.begin());
    };
  }

  TrainHooks from_golden() const {
    TrainHooks hooks;
    hooks.initial = [this](const ParameterGroup& group, uint64_t first, uint64_t count, float* out) {
      std::vector<float> whole(std::max(group.elements, first + count), 0.0f);
      for (const Tensor& tensor : group.tensors)
        std::ranges::copy(tensor_named(tensor.name).initial,
                          whole.begin() + static_cast<std::ptrdiff_t>(tensor.offset));
      std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(first), count, out);
    };
    return hooks;
  }

  const GoldenTensor& tensor_named(const std::string& name) const {
    const auto found = std::ranges::find(golden_.tensors, name, &GoldenTensor::name);
    if (found == golden_.tensors.end()) throw std::runtime_error("the golden has no " + name);
    return *found;
  }
};

TEST_P(TrainerParity, LossesAndNormsOfTwentySteps) {
  const Course course = train(config_, samples(), from_golden());
  ASSERT_EQ(course.losses.size(), 20u);
  for (size_t k = 0; k < 20; ++k) {
    EXPECT_NEAR(course.losses[k], golden_.losses[k], allowed * golden_.losses[k]) << "step " << k + 1;
    EXPECT_NEAR(course.norms[k], golden_.gradient_norms[k], allowed * golden_.gradient_norms[k]) << "step " << k + 1;
  }
}

// Relative to the largest element of the tensor: an element whose true gradient is near 0 is all rounding.
TEST_P(TrainerParity, FirstGradientOfEveryTensor) {
  GradientCollector collector(config_, 1);
  TrainHooks hooks = from_golden();
  hooks.observer = collector.observers();
  hooks.stop_requested = [] { return true; };
  const Course course = train(config_, samples(), hooks);
  ASSERT_EQ(course.result.steps, 1);
  const Weights found = collector.of_mean(course.result.last.scalars.tokens);
  EXPECT_EQ(found.size(), golden_.tensors.size());
  for (const GoldenTensor& tensor : golden_.tensors)
    EXPECT_LE(relative_difference(found.at(tensor.name), tensor.gradient), allowed) << tensor.name;
}

INSTANTIATE_TEST_SUITE_P(Models, TrainerParity,
                         testing::Combine(testing::Values<std::string>("gpt2", "llama", "llama-tied"), testing::Bool()),
                         [](const auto& tested) {
                           std::string name = std::get<0>(tested.param);
                           std::erase(name, '-');
                           return name + (std::get<1>(tested.param) ? "Pp2Dp2Zero3" : "OneRank");
                         });

}  // namespace
}  // namespace shardpipe
