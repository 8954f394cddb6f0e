// Mixed precision over layouts: the bits of the plain loop, sums that lose nothing, and a loss scale on which all ranks
// agree.
#include <gmock/gmock.h>

#include <array>
#include <mutex>

#include "equivalence/course.h"
#include "program/loss_scale.h"
#include "program/traffic.h"
#include "schedules/schedule.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

RunConfig run_in(DType precision, const ModelConfig& model, const Layout& layout) {
  RunConfig config = tiny_run(model, layout);
  config.layout.precision = precision;
  return config;
}

class Precision : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Half, Precision, testing::Values(DType::BFloat16, DType::Float16),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

// Every schedule with every ZeRO stage and rule of recomputation, one combination after the other.
void expect_plain_bits(DType precision, const ModelConfig& model, const std::vector<int64_t>& depths) {
  const std::array rules{"none", "full", "selective", "every:2", "blocks:0-1,4-5"};
  for (const int64_t dp : {1, 2})
    for (const ReduceEvery reduce_every : {ReduceEvery::Step, ReduceEvery::Micro}) {
      const Course plain = train_plain(run_in(precision, model, tiny_layout(1, dp, 0, 3, reduce_every)));
      size_t number = 0;
      for (const int64_t pp : depths)
        for (const int zero : {0, 1, 2, 3})
          for (const std::string& schedule : schedule_names()) {
            RunConfig config = run_in(precision, model, tiny_layout(pp, dp, zero, 3, reduce_every, schedule));
            config.layout.recompute = rules[number++ % rules.size()];
            if (config.layout.chunks() > model.layers + 2) continue;
            ASSERT_TRUE(same_bits(train(config), plain)) << describe(config);
          }
    }
}
TEST_P(Precision, SameBitsAcrossZeroStagesSchedulesAndRecomputation) {
  for (const ModelConfig& model : {tiny_gpt2(), tiny_llama()}) expect_plain_bits(GetParam(), model, {2});
}
class PrecisionSlow : public Precision {};
INSTANTIATE_TEST_SUITE_P(Half, PrecisionSlow, testing::Values(DType::BFloat16, DType::Float16),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });
TEST_P(PrecisionSlow, SameBitsAcrossDepths) {
  for (const ModelConfig& model : {tiny_gpt2(), tiny_llama()}) expect_plain_bits(GetParam(), model, {1, 4});
}

// Gradients rounded to bf16 before they cross: one digest over stages, schedules, ZeRO stages and copies, near the one
// of fp32 and not equal to it; of a lone replica too.
TEST(ReduceDtype, HasThePlainBitsInEveryLayout) {
  const std::array precisions{DType::Float32, DType::BFloat16, DType::Float16};
  size_t number = 0;
  for (const ModelConfig& model : {tiny_gpt2(), tiny_llama()})
    for (const int64_t dp : {1, 2, 4})
      for (const ReduceEvery reduce_every : {ReduceEvery::Step, ReduceEvery::Micro}) {
        const DType precision = precisions[number++ % precisions.size()];
        const auto run = [&](int64_t pp, int zero, const std::string& schedule, int64_t replicate) {
          RunConfig config = run_in(precision, model, tiny_layout(pp, dp, zero, 3, reduce_every, schedule));
          config.layout.reduce_dtype = DType::BFloat16;
          config.layout.replicate = replicate;
          return config;
        };
        const Course plain = train_plain(run(1, 0, "1f1b", 1));
        const Course in_fp32 = train_plain(run_in(precision, model, tiny_layout(1, dp, 0, 3, reduce_every)));
        EXPECT_NE(plain.digest, in_fp32.digest);
        for (size_t k = 0; k < plain.losses.size(); ++k)
          EXPECT_NEAR(plain.losses[k], in_fp32.losses[k], 0.01 * in_fp32.losses[k]);
        for (const int64_t pp : {1, 2})
          for (const int zero : {0, 1, 2, 3})
            for (const char* schedule : {"1f1b", "zb-h1"})
              for (const int64_t replicate : {int64_t{1}, dp})
                if (replicate == 1 || zero > 0) {
                  const RunConfig config = run(pp, zero, schedule, replicate);
                  ASSERT_TRUE(same_bits(train(config), plain)) << describe(config);
                }
      }
}

TEST_P(Precision, HasOtherBitsThanFp32AndNearlyItsLoss) {
  const Layout layout = tiny_layout(2, 2, 3, 3, ReduceEvery::Micro);
  const Course half = train(run_in(GetParam(), tiny_gpt2(), layout)), full = train(tiny_run(tiny_gpt2(), layout));
  EXPECT_NE(half.digest, full.digest);
  for (size_t k = 0; k < full.losses.size(); ++k) EXPECT_NEAR(half.losses[k], full.losses[k], 0.01 * full.losses[k]);
}

TEST_P(Precision, RanksSendWhatTheProgramSays) {
  for (const int zero : {0, 1, 2, 3}) {
    const RunConfig config = run_in(GetParam(), tiny_llama(), tiny_layout(2, 3, zero, 2, ReduceEvery::Micro));
    const Model model = make_model(config.model);
    const Step step = make_step(model, config.layout, 2);
    const Course course = train(config, step, random_samples(config.seed, config.model.vocab_size));
    for (size_t rank = 0; rank < 6; ++rank) {
      const Traffic of_step = traffic(step.training, static_cast<uint16_t>(rank / 3), 3);
      const auto steps = static_cast<uint64_t>(config.steps);
      EXPECT_EQ(course.result.wire_bytes[rank].total(), steps * of_step.total()) << describe(config);
      EXPECT_EQ(course.result.wire_bytes[rank].all_gather, steps * of_step.all_gather) << describe(config);
    }
  }
}

// One sequence, repeated: the mean gradient is that of one. Sums in 16 bits would stand still after some hundred equal
// terms, at a quarter of the true sum.
TEST_P(Precision, ManyEqualMicroBatchesAddUpToManyTimesOne) {
  const SampleSource one = random_samples(7, 65);
  const SampleSource same = [&](int64_t, auto inputs, auto targets) { one(0, inputs, targets); };
  const auto norm = [&](int64_t pp, int zero, int64_t micro_batches) {
    RunConfig config =
        run_in(GetParam(), tiny_gpt2(), tiny_layout(pp, 1, zero, micro_batches, default_reduce_every(zero)));
    config.steps = 1;
    config.optimizer.warmup_steps = 0;
    config.loss_scale.initial = 1024.0 * 16 * static_cast<double>(micro_batches);  // the same factor for each
    return train(config, same).norms[0];
  };
  const double expected = norm(1, 0, 1);
  ASSERT_TRUE(std::isfinite(expected));
  for (const int64_t pp : {1, 2})
    for (const int zero : {0, 1, 2, 3})
      EXPECT_NEAR(norm(pp, zero, 1024), expected, 1e-6 * expected) << "pp " << pp << ", zero " << zero;
}

// Gradients are divided by the scale that they were multiplied by, also in a step after which it grows.
TEST(LossScaling, GradientNormsAreThoseOfFp32InStepsInWhichTheScaleGrows) {
  for (const double clip : {0.0, 1e-3}) {
    RunConfig config = run_in(DType::Float16, tiny_gpt2(), tiny_layout(2, 2, 3, 2, ReduceEvery::Micro));
    config.steps = 4;
    config.optimizer = {.optimizer = OptimizerKind::Sgd, .lr = 0, .min_lr = 0, .weight_decay = 0, .grad_clip = clip};
    config.loss_scale = {.initial = 4096, .growth = 2, .growth_interval = 1};
    RunConfig full = config;
    full.layout.precision = DType::Float32;
    const Course scaled = train(config), expected = train(full);
    EXPECT_EQ(scaled.result.last.scalars.loss_scale, 4096 * 8);
    for (size_t k = 0; k < 4; ++k)
      EXPECT_NEAR(scaled.norms[k], expected.norms[k], 0.01 * expected.norms[k]) << "step " << k + 1;
  }
}

// What every rank holds after each step.
class ScaleWatch {
 public:
  explicit ScaleWatch(int64_t steps) : by_step_(static_cast<size_t>(steps)) {}

  void look(int64_t step, const Action& action, const RankProgram& rank, const std::byte* arena) {
    if (action.kind != Kind::Clip) return;
    for (const Use& use : uses_of(rank, action)) {
      const Buffer& buffer = rank.buffers[use.buffer];
      if (buffer.role != Role::LossScale) continue;
      const std::scoped_lock lock(mutex_);
      by_step_[static_cast<size_t>(step - 1)].push_back(*reinterpret_cast<const LossScale*>(arena + buffer.offset));
    }
  }
  void expect_agreement(size_t ranks) const {
    for (size_t k = 0; k < by_step_.size(); ++k) {
      ASSERT_EQ(by_step_[k].size(), ranks) << "step " << k + 1;
      EXPECT_THAT(by_step_[k], Each(by_step_[k].front())) << "step " << k + 1;
    }
  }
  const LossScale& after(int64_t step) const { return by_step_[static_cast<size_t>(step - 1)].front(); }

 private:
  std::mutex mutex_;
  std::vector<std::vector<LossScale>> by_step_;
};

// Infinity in one gradient of one rank, in one step.
TEST(LossScaling, AnOverflowOfOneRankIsSkippedByAllWhoAgreeOnTheScale) {
  for (const int zero : {0, 3})
    for (const int struck : {3, 7}) {  // replica 3 of either stage
      RunConfig config = run_in(DType::Float16, tiny_gpt2(), tiny_layout(2, 4, zero, 2, default_reduce_every(zero)));
      config.steps = 50;
      config.loss_scale = {.initial = 1024, .growth_interval = 10, .hysteresis = 1};
      ScaleWatch watch(config.steps);
      TrainHooks hooks;
      hooks.observer = [&](int world_rank) -> Observer {
        return [&, world_rank](int64_t step, const Action& action, const RankProgram& rank, std::byte* arena) {
          watch.look(step, action, rank, arena);
          if (world_rank != struck || step != 5 || !gives_gradients(action.kind) || action.micro_batch != 1) return;
          for (const Use& use : uses_of(rank, action))
            if (rank.buffers[use.buffer].role == Role::Gradient)
              *reinterpret_cast<float*>(arena + rank.buffers[use.buffer].offset) =
                  std::numeric_limits<float>::infinity();
        };
      };
      const Course course = train(config, hooks);
      watch.expect_agreement(8);
      EXPECT_EQ(watch.after(4).scale, 1024);
      EXPECT_EQ(watch.after(5).scale, 512);
      EXPECT_EQ(watch.after(14).scale, 512);
      EXPECT_EQ(watch.after(15).scale, 1024);
      EXPECT_EQ(course.result.skipped_steps, 1);
      // The learning rate of the skipped step is that of the next.
      EXPECT_EQ(course.learning_rates[5], course.learning_rates[4]);
      EXPECT_NE(course.learning_rates[6], course.learning_rates[5]);
    }
}

TEST(LossScaling, TooLargeAScaleIsSkippedUntilItFitsWithTheBitsOfThePlainLoop) {
  for (const int64_t pp : {1, 2}) {
    RunConfig config = run_in(DType::Float16, tiny_gpt2(), tiny_layout(pp, 2, 3, 2, ReduceEvery::Micro));
    config.steps = 30;
    config.loss_scale.initial = 0x1p30;
    const Course course = train(config);
    EXPECT_TRUE(same_bits(course, train_plain(config)));
    EXPECT_GT(course.result.skipped_steps, 2);
    EXPECT_LT(course.result.skipped_steps, 20);
    EXPECT_TRUE(std::isfinite(course.losses.back()));
    EXPECT_LT(course.losses.back(), course.losses.front());
  }
}

TEST(LossScaling, SkippedStepsChangeNothing) {
  RunConfig config = run_in(DType::Float16, tiny_gpt2(), tiny_layout(2, 2, 1, 2, ReduceEvery::Step));
  config.loss_scale = {.initial = 0x1p40, .hysteresis = 100};
  const Course course = train(config);
  EXPECT_EQ(course.result.skipped_steps, config.steps);
  EXPECT_EQ(course.weights, initial_weights(config));
  EXPECT_THAT(course.learning_rates, Each(course.learning_rates.front()));
}

std::string error_of(const RunConfig& config, const TrainHooks& hooks) {
  try {
    train(config, hooks);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST(LossScaling, OverflowsAtTheSmallestScaleEndTheRun) {
  RunConfig config = run_in(DType::Float16, tiny_gpt2(), tiny_layout(2, 2, 1, 2, ReduceEvery::Step));
  config.loss_scale = {.initial = 0x1p40, .minimum = 0x1p40};
  EXPECT_THAT(error_of(config, {}), AllOf(HasSubstr("step 2"), HasSubstr("at the smallest loss scale"),
                                          HasSubstr("--precision bf16"), HasSubstr("what the backward gives of")));
}

// The weights of one layer are not finite: all that comes after it is not either.
TEST(NonFinite, IsToldWithTheStepBlockMicroBatchAndRankInWhichItBegan) {
  for (const DType precision : {DType::Float32, DType::BFloat16, DType::Float16})
    for (const int zero : {0, 3}) {
      RunConfig config = run_in(precision, tiny_gpt2(), tiny_layout(3, 2, zero, 3, default_reduce_every(zero)));
      config.layout.stages = {2, 2, 2};  // embedding, 0 | 1, 2 | 3, head
      TrainHooks hooks;
      hooks.initial = [](const ParameterGroup& group, uint64_t first, uint64_t count, float* out) {
        initialise(group, 7, first, count, out);
        if (group.name == "layer 2" && first == 0) out[5] = std::numeric_limits<float>::quiet_NaN();
      };
      EXPECT_THAT(error_of(config, hooks),
                  AllOf(HasSubstr("step 1: loss nan"), HasSubstr("the output of layer 2, micro-batch 0, on rank 2"),
                        HasSubstr("--on-nan continue"),
                        HasSubstr(precision == DType::Float16 ? "--precision bf16" : "a lower --lr")));
      config.on_nan = OnNan::Continue;
      hooks.keep_parameters = true;
      const Course course = train(config, hooks);
      EXPECT_EQ(course.result.skipped_steps, config.steps);
    }
}

}  // namespace
}  // namespace shardpipe
