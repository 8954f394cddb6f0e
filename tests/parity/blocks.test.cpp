// The blocks against PyTorch, through the plain loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "parity/goldens.h"
#include "train/plain_loop.h"

namespace shardpipe {
namespace {

constexpr double allowed = 1e-5;  // relative; PyTorch's own float32 run is within 8e-7 of its float64 run

// How the global batch of 8 sequences is cut.
struct Cut {
  int64_t dp, micro_batch_size;
  ReduceEvery reduce_every;
};

PlainLoop start(const Golden& golden, const Cut& cut) {
  PlainLoop loop(golden.model,
                 {.dp = cut.dp,
                  .micro_batch_size = cut.micro_batch_size,
                  .global_batch_size = golden.batch,
                  .reduce_every = cut.reduce_every,
                  .stages = {}},
                 golden.optimizer, 1);
  size_t next = 0;
  for (size_t g = 0; g < loop.model.groups.size(); ++g) {
    for (const Tensor& tensor : loop.model.groups[g].tensors) {
      const GoldenTensor& from = golden.tensors.at(next++);
      EXPECT_EQ(tensor.name, from.name);
      EXPECT_EQ(tensor.shape, from.shape);
      std::ranges::copy(from.initial, loop.parameter(g, tensor).begin());
    }
  }
  EXPECT_EQ(next, golden.tensors.size());
  return loop;
}

PlainStep run_step(PlainLoop& loop, const Golden& golden, int64_t step) {
  return loop.step(golden.step_of(golden.tokens, step), golden.step_of(golden.targets, step), golden.optimizer.lr);
}

class Parity : public testing::TestWithParam<const char*> {
 protected:
  const Golden golden_ = read_golden(GetParam());
};

TEST_P(Parity, LossesAndNormsOfTwentySteps) {
  for (const Cut& cut : {Cut{1, 8, ReduceEvery::Step}, Cut{1, 2, ReduceEvery::Step}, Cut{2, 1, ReduceEvery::Step},
                         Cut{2, 2, ReduceEvery::Micro}}) {
    SCOPED_TRACE(testing::Message() << "dp " << cut.dp << ", micro-batch size " << cut.micro_batch_size);
    PlainLoop loop = start(golden_, cut);
    for (int64_t step = 0; step < golden_.steps; ++step) {
      const PlainStep result = run_step(loop, golden_, step);
      const double loss = golden_.losses[static_cast<size_t>(step)];
      const double norm = golden_.gradient_norms[static_cast<size_t>(step)];
      EXPECT_NEAR(result.loss, loss, allowed * loss) << "step " << step;
      EXPECT_NEAR(result.gradient_norm, norm, allowed * norm) << "step " << step;
    }
  }
}

// PyTorch's autocast keeps the residual stream and the norms' outputs in float32, where the blocks store bf16. Losses
// of both are within 0.2 % of float32's; norms differ by up to 0.9 %.
TEST_P(Parity, Bfloat16LossesAreThoseOfAutocastWithinOnePercent) {
  for (const Cut& cut : {Cut{1, 8, ReduceEvery::Step}, Cut{2, 2, ReduceEvery::Micro}}) {
    SCOPED_TRACE(testing::Message() << "dp " << cut.dp << ", micro-batch size " << cut.micro_batch_size);
    PlainLoop loop = start(golden_, cut);
    loop.dtype = DType::BFloat16;
    for (int64_t step = 0; step < golden_.steps; ++step) {
      const PlainStep result = run_step(loop, golden_, step);
      const double loss = golden_.bfloat16_losses[static_cast<size_t>(step)];
      const double norm = golden_.bfloat16_gradient_norms[static_cast<size_t>(step)];
      EXPECT_NEAR(result.loss, loss, 0.01 * loss) << "step " << step;
      EXPECT_NEAR(result.gradient_norm, norm, 0.02 * norm) << "step " << step;
      EXPECT_NE(static_cast<float>(result.loss), static_cast<float>(golden_.losses[static_cast<size_t>(step)]));
    }
  }
}

TEST_P(Parity, Float16LossesAreThoseOfFloat32WithinAThousandth) {
  PlainLoop loop = start(golden_, {1, 2, ReduceEvery::Step});
  loop.dtype = DType::Float16;
  for (int64_t step = 0; step < golden_.steps; ++step) {
    const double loss = golden_.losses[static_cast<size_t>(step)];
    EXPECT_NEAR(run_step(loop, golden_, step).loss, loss, 0.001 * loss) << "step " << step;
  }
}

// Relative to the largest element of the tensor: an element whose true gradient is near 0 is all rounding.
TEST_P(Parity, FirstGradientOfEveryTensor) {
  PlainLoop loop = start(golden_, {2, 2, ReduceEvery::Micro});
  const double tokens = run_step(loop, golden_, 0).tokens;
  size_t next = 0;
  for (size_t g = 0; g < loop.model.groups.size(); ++g) {
    for (const Tensor& tensor : loop.model.groups[g].tensors) {
      const std::vector<float>& expected = golden_.tensors[next++].gradient;
      const auto actual = loop.gradient(g, tensor);
      double largest = 0, difference = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        largest = std::max(largest, std::abs(double{expected[i]}));
        difference = std::max(difference, std::abs(double{actual[i]} / tokens - double{expected[i]}));
      }
      EXPECT_GT(largest, 0) << tensor.name;
      EXPECT_LE(difference, allowed * largest) << tensor.name;
    }
  }
}

// Without steps on both sides of the threshold, a clip that is never or always applied would pass.
TEST_P(Parity, ClipsSomeStepsAndNotOthers) {
  EXPECT_THAT(golden_.gradient_norms, testing::Contains(testing::Gt(golden_.optimizer.grad_clip * 1.1)));
  EXPECT_THAT(golden_.gradient_norms, testing::Contains(testing::Lt(golden_.optimizer.grad_clip * 0.9)));
}

INSTANTIATE_TEST_SUITE_P(Models, Parity, testing::Values("gpt2", "llama", "llama-tied"), [](const auto& tested) {
  std::string name = tested.param;
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace shardpipe
