// Kinds of fault that trainers have had, each over layouts. In most, AdamW would hide the fault: its first update is
// the learning rate whatever the gradient's scale; so gradients, norms, or SGD are looked at.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "equivalence/course.h"
#include "equivalence/gradients.h"
#include "kernels/cpu/cross_entropy.h"
#include "program/memory.h"
#include "schedules/schedule.h"
#include "support/temporary_folder.h"
#include "support/unnamed_files.h"

namespace shardpipe {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// SGD at learning rate 1 without decay: the weights' change is the clipped gradient.
RunConfig bare_sgd(const ModelConfig& model, const Layout& layout) {
  RunConfig config = tiny_run(model, layout);
  config.steps = 1;
  config.optimizer = {.optimizer = OptimizerKind::Sgd,
                      .lr = 1,
                      .min_lr = 0,
                      .lr_schedule = LrSchedule::Constant,
                      .weight_decay = 0,
                      .grad_clip = 0};
  return config;
}

// Ends the process, and with it the test, when something hangs: no outcome depends on how long it takes.
class HangLimit {
 public:
  explicit HangLimit(unsigned seconds) { alarm(seconds); }
  ~HangLimit() { alarm(0); }
  HangLimit(const HangLimit&) = delete;
  HangLimit& operator=(const HangLimit&) = delete;
};

SampleSource tokens_of(const RunConfig& config) { return random_samples(config.seed, config.model.vocab_size); }

// The same, with targets from position `counted(sample)` on ignored.
SampleSource with_targets(const RunConfig& config, const std::function<size_t(int64_t sample)>& counted) {
  return [counted, all = tokens_of(config)](int64_t sample, std::span<int32_t> inputs, std::span<int32_t> targets) {
    all(sample, inputs, targets);
    std::ranges::fill(targets.subspan(std::min(counted(sample), targets.size())), kernels::ignored_target);
  };
}

void expect_near(const Weights& found, const Weights& expected, double allowed, const std::string& where) {
  for (const auto& [tensor, values] : expected)
    EXPECT_LE(relative_difference(found.at(tensor), values), allowed) << tensor << ", " << where;
}

void expect_finite(const Weights& weights, const std::string& where) {
  for (const auto& [tensor, values] : weights)
    EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) << tensor << ", " << where;
}

// Document A has 10 targets, B has 100. Averaging averages would give A's tokens ten times their weight.
TEST(AccumulationNormalisation, EveryTargetCountsTheSame) {
  ModelConfig model = tiny_gpt2();
  model.seq_len = 100;
  const auto run = [&](const Layout& layout, const std::vector<size_t>& counted, int64_t first) {
    const RunConfig config = bare_sgd(model, layout);
    const SampleSource all = with_targets(config, [=](int64_t s) { return counted[static_cast<size_t>(s - first)]; });
    return first_step(config, [=](int64_t s, auto inputs, auto targets) { all(s + first, inputs, targets); });
  };
  const Layout alone = tiny_layout(1, 1, 0, 1, ReduceEvery::Step);
  const FirstStep a = run(alone, {10}, 0), b = run(alone, {100}, 1);
  ASSERT_EQ(a.tokens, 10);
  ASSERT_EQ(b.tokens, 100);
  Weights expected;
  for (const auto& [tensor, values] : a.gradients)
    for (size_t i = 0; i < values.size(); ++i)
      expected[tensor].push_back((10 * values[i] + 100 * b.gradients.at(tensor)[i]) / 110);
  const double loss = (10 * a.loss + 100 * b.loss) / 110;
  ASSERT_GT(std::abs((a.loss + b.loss) / 2 - loss), 1e-3) << "the mean of means must show";

  Layout one_batch = alone;
  one_batch.micro_batch_size = one_batch.global_batch_size = 2;
  for (const Layout& layout :
       {one_batch, tiny_layout(1, 1, 0, 2, ReduceEvery::Step), tiny_layout(1, 1, 2, 2, ReduceEvery::Micro),
        tiny_layout(1, 2, 0, 1, ReduceEvery::Step), tiny_layout(1, 2, 3, 1, ReduceEvery::Micro),
        tiny_layout(2, 1, 0, 2, ReduceEvery::Step, "gpipe"), tiny_layout(2, 2, 3, 1, ReduceEvery::Micro)}) {
    const FirstStep both = run(layout, {10, 100}, 0);
    const std::string where = describe(bare_sgd(model, layout));
    EXPECT_EQ(both.tokens, 110) << where;
    EXPECT_NEAR(both.loss, loss, 1e-6 * loss) << where;
    expect_near(both.gradients, expected, 1e-5, where);
  }
}

// A window without a target divides by no zero and changes nothing.
TEST(WindowWithoutTargets, GivesNoGradientAndNoNan) {
  const auto samples_of = [](const RunConfig& config, bool with_empty) {
    // Three windows a step, the middle one empty; or the other two alone.
    const SampleSource all = tokens_of(config);
    return SampleSource([=](int64_t sample, std::span<int32_t> inputs, std::span<int32_t> targets) {
      const int64_t window = with_empty ? sample % 3 : sample % 2 * 2;
      all(window, inputs, targets);
      if (window == 1) std::ranges::fill(targets, kernels::ignored_target);
    });
  };
  const RunConfig two = bare_sgd(tiny_gpt2(), tiny_layout(1, 1, 0, 2, ReduceEvery::Step));
  const FirstStep expected = first_step(two, samples_of(two, false));
  for (const Layout& layout :
       {tiny_layout(1, 1, 0, 3, ReduceEvery::Step), tiny_layout(2, 1, 0, 3, ReduceEvery::Step),
        tiny_layout(1, 3, 0, 1, ReduceEvery::Step), tiny_layout(2, 3, 3, 1, ReduceEvery::Micro)}) {
    const RunConfig config = bare_sgd(tiny_gpt2(), layout);
    const FirstStep found = first_step(config, samples_of(config, true));
    EXPECT_EQ(found.tokens, expected.tokens) << describe(config);
    EXPECT_NEAR(found.loss, expected.loss, 1e-6 * expected.loss) << describe(config);
    expect_near(found.gradients, expected.gradients, 1e-5, describe(config));
  }
  // One replica: adding nothing adds exactly nothing.
  const RunConfig three = bare_sgd(tiny_gpt2(), tiny_layout(2, 1, 0, 3, ReduceEvery::Step));
  EXPECT_EQ(train(three, samples_of(three, true)).digest, train(two, samples_of(two, false)).digest);
}

TEST(WindowWithoutTargets, AStepOfThemAloneChangesNothing) {
  for (const int zero : {0, 1, 2, 3}) {
    RunConfig config = tiny_run(tiny_llama(), tiny_layout(2, 2, zero, 2, ReduceEvery::Micro));
    config.steps = 1;
    config.optimizer.warmup_steps = 0;
    const Course empty = train(config, with_targets(config, [](int64_t) { return 0; }));
    EXPECT_THAT(empty.losses, ElementsAre(0.0)) << describe(config);
    EXPECT_THAT(empty.norms, ElementsAre(0.0)) << describe(config);
    EXPECT_EQ(empty.weights, initial_weights(config)) << describe(config);

    config.steps = 4;  // the third of four is empty
    const SampleSource samples = with_targets(config, [&](int64_t s) { return s / 4 == 2 ? 0 : 16; });
    const Course course = train(config, samples);
    EXPECT_TRUE(same_bits(course, train_plain(config, samples))) << describe(config);
    expect_finite(course.weights, describe(config));
    EXPECT_EQ(course.losses[2], 0);
    EXPECT_GT(course.losses[3], 1);
  }
}

TEST(LearningRateSchedule, AdvancesOncePerOptimizerStepInEveryLayout) {
  for (const int64_t pp : {1, 4})
    for (const int64_t dp : {1, 2, 4})
      for (const int64_t accumulation : {1, 4, 7}) {
        RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(pp, dp, 0, accumulation, ReduceEvery::Step));
        config.model.hidden = 8;
        config.model.ffn = 8;
        config.steps = 12;
        config.optimizer.lr = 1e-3;
        config.optimizer.warmup_steps = 10;
        config.optimizer.lr_schedule = LrSchedule::Constant;
        const Course course = train(config);
        ASSERT_THAT(course.learning_rates, SizeIs(12));
        for (size_t k = 1; k <= 12; ++k)
          EXPECT_DOUBLE_EQ(course.learning_rates[k - 1], 1e-3 * static_cast<double>(std::min<size_t>(k, 10)) / 10)
              << "step " << k << ", " << describe(config);
      }
}

// A stage that clips by its own norm moves the weights √pp times too far.
TEST(Clipping, IsByTheNormOfAllStagesAndShards) {
  for (const ModelConfig& model : {tiny_gpt2(), tiny_llama()}) {
    const double norm = train(bare_sgd(model, tiny_layout(1, 1, 0, 4, ReduceEvery::Step))).norms.at(0);
    for (const int64_t pp : {1, 2, 4})
      for (const int64_t dp : {1, 2})
        for (const int zero : {0, 1, 2, 3}) {
          RunConfig config = bare_sgd(model, tiny_layout(pp, dp, zero, 4 / dp, default_reduce_every(zero)));
          const Weights before = initial_weights(config);
          for (const auto& [clip, distance] : {std::pair{0.1 * norm, 0.1 * norm}, {10 * norm, norm}, {0.0, norm}}) {
            config.optimizer.grad_clip = clip;
            const Course course = train(config);
            EXPECT_NEAR(course.norms.at(0), norm, 1e-5 * norm) << describe(config);
            EXPECT_NEAR(length(change(before, course.weights)), distance, 1e-4 * distance)
                << describe(config) << ", clip " << clip;
          }
        }
  }
}

// Two copies that agree can agree on a wrong sum: the change is compared with that of one rank, element by element.
// 67 × 9 elements do not divide by two, so a shard border falls inside a row.
TEST(TiedWeights, ChangeAsOnOneRankElementByElement) {
  ModelConfig odd = tiny_gpt2();
  odd.vocab_size = 67;
  odd.hidden = 9;
  odd.heads = odd.kv_heads = 3;
  odd.ffn = 36;
  ModelConfig even = tiny_gpt2();
  even.vocab_size = 67;
  for (const ModelConfig& model : {odd, even}) {
    const RunConfig one = bare_sgd(model, tiny_layout(1, 1, 0, 4, ReduceEvery::Step));
    const Weights before = initial_weights(one), expected = change(before, train(one).weights);
    for (const int64_t pp : {1, 2, 3})
      for (const int zero : {0, 1, 2, 3})
        for (const ReduceEvery reduce_every : {ReduceEvery::Step, ReduceEvery::Micro}) {
          const RunConfig config = bare_sgd(model, tiny_layout(pp, 2, zero, 2, reduce_every));
          const std::vector<float> found = change(before, train(config).weights).at("wte.weight");
          ASSERT_EQ(found.size(), static_cast<size_t>(67 * model.hidden));
          EXPECT_LE(relative_difference(found, expected.at("wte.weight")), 1e-5) << describe(config);
        }
  }
}

TEST(FewerMicroBatchesThanStages, RunToTheEndWithThePlainBits) {
  ModelConfig model = tiny_gpt2();
  model.layers = 14;  // sixteen blocks, for two chunks on each of eight ranks
  for (const auto& [pp, m] : {std::pair<int64_t, int64_t>{4, 1}, {4, 2}, {4, 3}, {8, 1}, {8, 5}}) {
    const Course plain = train_plain(tiny_run(model, tiny_layout(1, 1, 0, m, ReduceEvery::Step)));
    for (const std::string& schedule : schedule_names())
      for (const int zero : {0, 3}) {
        const RunConfig config = tiny_run(model, tiny_layout(pp, 1, zero, m, ReduceEvery::Step, schedule));
        const HangLimit limit(120);
        EXPECT_THAT(problems_of(config), IsEmpty());
        EXPECT_TRUE(same_bits(train(config), plain)) << describe(config);
      }
  }
}

// A batch that would split into 3, 3 and 2 is refused, with the numbers and the nearest that work.
TEST(UnevenMicroBatches, AreRefusedWithTheNearestBatches) {
  for (const int64_t pp : {1, 2, 3}) {
    RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(pp, 1, 0, 1, ReduceEvery::Step));
    config.layout.micro_batch_size = 3;
    config.layout.global_batch_size = 8;
    EXPECT_THAT(
        problems_of(config),
        ElementsAre("--global-batch-size 8 is not --micro-batch-size 3 × --dp 1 × an integer: 6 or 9 would be"));
    config.layout.dp = 2;
    EXPECT_THAT(
        problems_of(config),
        ElementsAre("--global-batch-size 8 is not --micro-batch-size 3 × --dp 2 × an integer: 6 or 12 would be"));
    config.layout.dp = 3;
    EXPECT_THAT(problems_of(config),
                ElementsAre("--global-batch-size 8 is not --micro-batch-size 3 × --dp 3 × an integer: 9 would be"));
    for (const auto& [dp, batch] : {std::pair<int64_t, int64_t>{1, 6}, {1, 9}, {2, 6}, {2, 12}, {3, 9}}) {
      config.layout.dp = dp;
      config.layout.global_batch_size = batch;
      EXPECT_THAT(problems_of(config), IsEmpty());
    }
  }
}

// 30 layers on 4 stages once became 28 elsewhere.
TEST(UnevenLayers, AreEachTrainedOnce) {
  ModelConfig model = tiny_gpt2();
  model.layers = 30;
  model.hidden = 8;
  model.heads = model.kv_heads = 2;
  model.ffn = 32;
  RunConfig config = tiny_run(model, tiny_layout(4, 1, 0, 2, ReduceEvery::Step));
  config.steps = 1;
  config.optimizer.warmup_steps = 0;
  std::mutex mutex;
  std::map<int, int> forwards, backwards, updates;  // by block, by block, by parameter group
  TrainHooks hooks;
  hooks.observer = [&](int) -> Observer {
    return [&](int64_t, const Action& action, const RankProgram&, std::byte*) {
      const std::scoped_lock lock(mutex);
      if (action.kind == Kind::Forward) ++forwards[action.index];
      if (action.kind == Kind::Backward) ++backwards[action.index];
      if (action.kind == Kind::OptimizerStep) ++updates[action.index];
    };
  };
  const Course course = train(config, tokens_of(config), hooks);
  for (int block = 0; block < 32; ++block) {
    EXPECT_EQ(forwards[block], 2) << "of block " << block << " over two micro-batches";
    EXPECT_EQ(backwards[block], 2) << "of block " << block << " over two micro-batches";
  }
  const Model made = make_model(model);
  for (size_t g = 0; g < made.groups.size(); ++g)
    EXPECT_EQ(updates[static_cast<int>(g)], made.groups[g].name == "tied" ? 2 : 1) << made.groups[g].name;

  size_t elements = 0;
  std::set<std::string> layers;
  const Weights before = initial_weights(config);
  for (const auto& [tensor, values] : course.weights) {
    elements += values.size();
    EXPECT_NE(values, before.at(tensor)) << tensor << " was not trained";
    if (tensor.starts_with("h.")) layers.insert(tensor.substr(2, tensor.find('.', 2) - 2));
  }
  EXPECT_EQ(layers.size(), 30u);
  const size_t d = 8, vocabulary = 65, positions = 16;
  EXPECT_EQ(elements, vocabulary * d + positions * d + 30 * (12 * d * d + 13 * d) + 2 * d);
  EXPECT_TRUE(same_bits(course, train_plain(config)));
}

// The head's group has 8 elements: with 9 replicas one of them owns nothing, with 7 the last three.
void expect_tiny_shards_train(const std::vector<int64_t>& replicas, const std::vector<int64_t>& stages) {
  ModelConfig model = tiny_gpt2();
  model.layers = 1;
  model.hidden = 4;
  model.heads = model.kv_heads = 2;
  model.ffn = 16;
  model.vocab_size = 5;
  model.seq_len = 8;
  const Model made = make_model(model);
  for (const int64_t dp : replicas) {
    for (const ParameterGroup& group : made.groups) {
      const Shards cut = shards(group.elements, static_cast<uint64_t>(dp));
      uint64_t sum = 0;
      for (uint64_t r = 0; r < cut.ranks; ++r) sum += owned(cut, r).size();
      EXPECT_EQ(sum, group.elements) << group.name << ", dp " << dp;
    }
    RunConfig one = bare_sgd(model, tiny_layout(1, 1, 0, dp, ReduceEvery::Step));
    one.steps = 3;
    one.optimizer.lr = 0.1;
    const Course expected = train_plain(one);
    const Course plain = train_plain(tiny_run(model, tiny_layout(1, dp, 0, 1, ReduceEvery::Step)));
    for (const int64_t pp : stages)
      for (const int zero : {0, 1, 2, 3}) {
        RunConfig config = one;
        config.layout = tiny_layout(pp, dp, zero, 1, ReduceEvery::Step);
        const Course found = train(config);
        EXPECT_NEAR(found.losses.at(2), expected.losses.at(2), 1e-5 * expected.losses.at(2)) << describe(config);
        expect_near(found.weights, expected.weights, 1e-5, describe(config));
        EXPECT_TRUE(same_bits(train(tiny_run(model, config.layout)), plain)) << describe(config);
      }
  }
}
TEST(TinyShards, TrainAsOneReplica) { expect_tiny_shards_train({2, 7}, {1, 3}); }
TEST(TinyShardsSlow, TrainAsOneReplica) { expect_tiny_shards_train({1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 2, 3}); }

// A reduction that takes the first micro-batch only, or races with the next one, shows in the norm.
TEST(ShardedAccumulation, OfIdenticalMicroBatchesHasTheNormOfOne) {
  for (const int zero : {0, 1, 2, 3})
    for (const ReduceEvery reduce_every : {ReduceEvery::Step, ReduceEvery::Micro})
      for (const int64_t pp : {1, 2}) {
        const auto norm = [&](int64_t m, bool identical) {
          const RunConfig config = bare_sgd(tiny_gpt2(), tiny_layout(pp, 2, zero, m, reduce_every));
          const SampleSource samples = tokens_of(config);
          return train(config, [&](int64_t s, auto in, auto out) { samples(identical ? 0 : s, in, out); }).norms.at(0);
        };
        const double one = norm(1, true);
        EXPECT_NEAR(norm(4, true), one, 1e-6 * one) << "zero " << zero << " pp " << pp;
        const double ddp = train(bare_sgd(tiny_gpt2(), tiny_layout(1, 2, 0, 4, ReduceEvery::Step))).norms.at(0);
        EXPECT_NEAR(norm(4, false), ddp, 1e-6 * ddp) << "zero " << zero << " pp " << pp;
      }
}

// With several chunks a rank, or weight parts put off, the last backward of a chunk is not the rank's last.
TEST(ShardedAccumulation, UnderEveryScheduleHasTheNormOfThePlainRun) {
  ModelConfig model = tiny_gpt2();
  model.layers = 6;
  const double plain = train(bare_sgd(model, tiny_layout(1, 2, 0, 6, ReduceEvery::Step))).norms.at(0);
  for (const std::string& schedule : schedule_names())
    for (const int zero : {1, 2, 3})
      for (const ReduceEvery reduce_every : {ReduceEvery::Step, ReduceEvery::Micro}) {
        const RunConfig config = bare_sgd(model, tiny_layout(2, 2, zero, 6, reduce_every, schedule));
        EXPECT_NEAR(train(config).norms.at(0), plain, 1e-6 * plain) << schedule << " zero " << zero;
      }
}

// The mean loss of each replica's only micro-batch, where both have the same sequence.
std::vector<double> losses_of_replicas(double dropout, int64_t pp) {
  ModelConfig model = tiny_gpt2();
  model.dropout = dropout;
  RunConfig config = tiny_run(model, tiny_layout(pp, 2, 3, 1, ReduceEvery::Micro));
  config.steps = 1;
  const SampleSource all = tokens_of(config);
  std::vector<double> losses(2);
  std::mutex mutex;
  TrainHooks hooks;
  hooks.observer = [&](int world_rank) -> Observer {
    return [&, world_rank](int64_t, const Action& action, const RankProgram& rank, const std::byte* arena) {
      if (action.kind != Kind::Forward) return;
      for (const Use& use : uses_of(rank, action))
        if (const Buffer& buffer = rank.buffers[use.buffer]; buffer.role == Role::Loss) {
          const std::scoped_lock lock(mutex);
          losses[static_cast<size_t>(world_rank) % 2] = *reinterpret_cast<const double*>(arena + buffer.offset);
        }
    };
  };
  train(
      config, [&](int64_t, auto inputs, auto targets) { all(0, inputs, targets); }, hooks);
  return losses;
}
TEST(Dropout, MasksOfReplicasDiffer) {
  for (const int64_t pp : {1, 2}) {
    const std::vector<double> with = losses_of_replicas(0.5, pp), without = losses_of_replicas(0, pp);
    EXPECT_NE(with[0], with[1]) << "pp " << pp;
    EXPECT_EQ(without[0], without[1]) << "pp " << pp;
    EXPECT_NE(with[0], without[0]);
  }
}

// A mask belongs to a sample, not to its place in a micro-batch: cut otherwise, losses differ by rounding alone.
TEST(Dropout, MasksDoNotDependOnTheMicroBatchSizeOrTheReplicas) {
  ModelConfig model = tiny_gpt2();
  model.dropout = 0.5;
  std::vector<double> expected;
  for (const auto& [dp, size] : {std::pair<int64_t, int64_t>{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {4, 1}}) {
    RunConfig config = tiny_run(model, tiny_layout(1, dp, 0, 4 / dp, ReduceEvery::Step));
    config.layout.micro_batch_size = size;
    config.steps = 1;
    const std::vector<double> losses = train(config).losses;
    if (expected.empty()) expected = losses;
    EXPECT_NEAR(losses[0], expected[0], 1e-6 * expected[0]) << "dp " << dp << ", micro-batches of " << size;
  }
}

TEST(Dropout, IsNotOfEvaluations) {
  const auto val_loss = [](double dropout) {
    ModelConfig model = tiny_gpt2();
    model.dropout = dropout;
    RunConfig config = tiny_run(model, tiny_layout(2, 2, 3, 2, ReduceEvery::Micro));
    config.steps = 1;
    config.optimizer.lr = config.optimizer.min_lr = 0;
    const Model made = make_model(model);
    const SampleSource samples = tokens_of(config);
    return *run_training(config, make_step(made, config.layout, 2),
                         {.train = samples, .held_out = samples, .held_out_samples = 8})
                .val_loss;
  };
  EXPECT_EQ(val_loss(0.5), val_loss(0));
}

TEST(InitialWeights, DependOnTheSeedAndNotOnTheLayout) {
  for (const ModelConfig& model : {tiny_gpt2(), tiny_llama()})
    for (const int64_t pp : {1, 2, 4})
      for (const int64_t dp : {1, 3})
        for (const int zero : {0, 1, 2, 3}) {
          RunConfig config = bare_sgd(model, tiny_layout(pp, dp, zero, 1, ReduceEvery::Step));
          config.optimizer.lr = 0;
          const Weights weights = train(config).weights;
          EXPECT_EQ(weights, initial_weights(config)) << describe(config);
          RunConfig other = config;
          other.seed = 8;
          EXPECT_NE(weights, initial_weights(other));
        }
}

TEST(InitialWeights, OfNoTwoTensorsAreEqual) {
  for (const ModelConfig& config : {tiny_gpt2(), tiny_llama()}) {
    const Model model = make_model(config);
    const Weights weights = initial_weights(tiny_run(config, tiny_layout(1, 1, 0, 1, ReduceEvery::Step)));
    std::map<std::vector<float>, std::string> starts;  // by the first elements, which identical streams would share
    for (const ParameterGroup& group : model.groups)
      for (const Tensor& tensor : group.tensors) {
        if (tensor.initial.kind != Initial::Kind::Normal) continue;
        std::vector<float> start(weights.at(tensor.name).begin(), weights.at(tensor.name).begin() + 16);
        for (float& x : start) x /= tensor.initial.deviation;
        for (const auto& [other, name] : starts)
          EXPECT_GT(relative_difference(start, other), 0.1) << tensor.name << " starts as " << name;
        starts[start] = tensor.name;
      }
    EXPECT_GT(starts.size(), 10u);
  }
}

TEST(WeightDecay, IsOfMatricesAloneAndDecoupled) {
  for (const ModelConfig& model : {tiny_gpt2(), tiny_llama()})
    for (const int zero : {0, 1, 2, 3}) {
      RunConfig config = tiny_run(model, tiny_layout(2, 2, zero, 2, default_reduce_every(zero)));
      config.steps = 1;
      config.optimizer.lr = 0.1;
      config.optimizer.lr_schedule = LrSchedule::Constant;
      config.optimizer.warmup_steps = 0;
      config.optimizer.weight_decay = 0;
      const Weights without = train(config).weights;
      config.optimizer.weight_decay = 0.1;
      const Weights with = train(config).weights, before = initial_weights(config);
      for (const auto& [tensor, values] : before) {
        const bool decays = tensor.ends_with("weight") && tensor != "wpe.weight" &&
                            tensor.find("ln_") == std::string::npos && tensor.find("norm") == std::string::npos;
        for (size_t i = 0; i < values.size(); ++i) {
          const double difference = double{with.at(tensor)[i]} - double{without.at(tensor)[i]};
          if (decays) {
            ASSERT_NEAR(difference, -0.01 * double{values[i]}, 3e-8) << tensor << ", " << describe(config);
          } else {
            ASSERT_EQ(difference, 0) << tensor << ", " << describe(config);
          }
        }
      }
    }
}

// Only the last stage makes a loss; rank 0 reports it.
TEST(LossOfRankZero, IsThatOfOneStage) {
  const auto run = [](int64_t pp, const std::string& schedule) {
    RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(pp, 1, 0, 2, ReduceEvery::Step, schedule));
    config.eval_every = 2;
    const Model model = make_model(config.model);
    const Step step = make_step(model, config.layout, 2);
    std::vector<std::pair<double, double>> losses;  // of training and of the held-out text
    TrainHooks hooks;
    hooks.on_step = [&](const StepResult& result) {
      losses.emplace_back(result.scalars.loss, result.val_loss.value_or(0));
    };
    run_training(config, step, {.train = tokens_of(config), .held_out = random_samples(99, 65), .held_out_samples = 3},
                 hooks);
    return losses;
  };
  const auto expected = run(1, "1f1b");
  ASSERT_THAT(expected, SizeIs(5));
  for (size_t k = 0; k < 5; ++k) {
    EXPECT_TRUE(expected[k].first > 1 && expected[k].first < 10);
    if (k == 1 || k == 3 || k == 4) {
      EXPECT_TRUE(expected[k].second > 1 && expected[k].second < 10);
    } else {
      EXPECT_EQ(expected[k].second, 0) << "an evaluation where none was asked for";
    }
  }
  for (const int64_t pp : {1, 2, 4})
    for (const std::string& schedule : schedule_names())
      if (tiny_layout(pp, 1, 0, 2, ReduceEvery::Step, schedule).chunks() <= tiny_gpt2().layers + 2) {
        EXPECT_EQ(run(pp, schedule), expected) << pp << schedule;
      }
}

// Three held-out windows in batches of two: the last batch is half empty, and counts half.
TEST(HeldOutLoss, IsTheMeanOverItsTargetsAndChangesNoWeight) {
  for (const int64_t dp : {1, 2}) {
    RunConfig config = bare_sgd(tiny_gpt2(), tiny_layout(2, dp, 3, 2 / dp, ReduceEvery::Micro));
    config.optimizer.lr = 0;
    const Model model = make_model(config.model);
    const TrainInputs inputs{.train = tokens_of(config), .held_out = tokens_of(config), .held_out_samples = 3};
    const TrainResult result = run_training(config, make_step(model, config.layout, 0), inputs);
    const RunConfig all_three = bare_sgd(tiny_gpt2(), tiny_layout(1, 1, 0, 3, ReduceEvery::Step));
    const double expected = train_plain(all_three).losses.at(0);
    EXPECT_NEAR(result.val_loss.value(), expected, 1e-6 * expected);
    EXPECT_EQ(result.params_digest, train(config).digest);
  }
}

// What a stage of 1F1B keeps does not grow with the micro-batches, but for their tokens, targets and loss.
TEST(MemoryOfMicroBatches, GrowsByTheirInputsAloneIn1F1B) {
  const auto peaks = [](int64_t m, const char* schedule) {
    const RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(4, 1, 0, m, ReduceEvery::Step, schedule));
    RunConfig short_run = config;
    short_run.steps = 1;
    short_run.optimizer.warmup_steps = 0;
    const TrainResult result = run_tiny(short_run);
    EXPECT_EQ(result.peak_bytes, result.planned_peak_bytes);
    return result.peak_bytes;
  };
  const RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(4, 1, 0, 4, ReduceEvery::Step));
  const Model model = make_model(config.model);
  const uint64_t activation = activation_bytes(model, {1, config.model.seq_len});
  // Tokens and targets of 16 positions are 64 bytes each, a loss fills one line of 64, its two slots 16.
  const uint64_t inputs = 64 + 64 + 64 + 16;
  const auto at_4 = peaks(4, "1f1b"), at_8 = peaks(8, "1f1b"), at_64 = peaks(64, "1f1b");
  const auto gpipe_at_4 = peaks(4, "gpipe"), gpipe_at_16 = peaks(16, "gpipe");
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_LE(at_64[s], at_8[s] + 56 * inputs) << "stage " << s;
    // With as many micro-batches as stages no forward stands between two backwards, and no gradient waits behind one.
    EXPECT_LE(at_8[s], at_4[s] + 4 * inputs + at_4[s] / 20) << "stage " << s;
    EXPECT_GE(gpipe_at_16[s], gpipe_at_4[s] + 12 * activation) << "stage " << s;
  }
}

// Ten windows, read in an order of their own each epoch; a run that starts at another step reads on where it says.
TEST(DataPosition, OfAContinuedRunIsThatOfTheUninterruptedOne) {
  for (const auto& [pp, dp, accumulation] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {1, 1, 4}, {2, 2, 2}}) {
    const auto windows_read = [&, pp = pp, dp = dp, accumulation = accumulation](int64_t first_step,
                                                                                 int64_t last_step) {
      RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(pp, dp, 0, accumulation, ReduceEvery::Step));
      config.model.hidden = 8;
      config.model.ffn = 8;
      config.optimizer.warmup_steps = 0;
      config.steps = last_step - first_step + 1;
      std::mutex mutex;
      std::map<int64_t, int64_t> windows;  // by sample: what each rank that asked was given
      const SampleSource tokens = tokens_of(config);
      const SampleSource logged = [&](int64_t sample, std::span<int32_t> inputs, std::span<int32_t> targets) {
        const int64_t window = window_of_sample(5, 10, sample);
        {
          const std::scoped_lock lock(mutex);
          windows[sample] = window;
        }
        tokens(window, inputs, targets);
      };
      TrainHooks hooks;
      hooks.first_sample_step = first_step - 1;
      train(config, logged, hooks);
      return windows;
    };
    const std::map<int64_t, int64_t> all = windows_read(1, 25);
    const int64_t batch = dp * accumulation;
    ASSERT_THAT(all, SizeIs(static_cast<size_t>(25 * batch)));
    for (int64_t epoch = 0; 10 * (epoch + 1) <= 25 * batch; ++epoch) {
      std::set<int64_t> windows;
      for (int64_t k = 0; k < 10; ++k) windows.insert(all.at(10 * epoch + k));
      EXPECT_THAT(windows, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)) << "epoch " << epoch;
    }
    for (const int64_t stop : {13, 10, 20}) {
      std::map<int64_t, int64_t> halves = windows_read(1, stop);
      const std::map<int64_t, int64_t> rest = windows_read(stop + 1, 25);
      EXPECT_EQ(halves.size() + rest.size(), all.size()) << "no sample twice";
      halves.insert(rest.begin(), rest.end());
      EXPECT_EQ(halves, all) << "stopped after step " << stop;
    }
  }
}

// Shards of no whole number of disk blocks, two runs in one folder at once, the folder gone in the middle.
TEST(OffloadToFiles, HasThePlainBitsWhateverHappensToTheFolder) {
  ModelConfig model = tiny_gpt2();
  model.vocab_size = 1'003;  // 1,003 × 32 elements: shards of 64,192 bytes
  RunConfig config = tiny_run(model, tiny_layout(1, 2, 3, 2, ReduceEvery::Micro));
  config.steps = 10;
  config.layout.offload = "optimizer,params,activations";
  config.layout.offload_piece = 5'001;
  const Course plain = train_plain(config);
  const auto folder = std::make_unique<TemporaryFolder>();
  config.offload_to = "nvme:" + folder->path().string();
  Course first, second;
  std::thread other([&] { second = train(config); });
  first = train(config);
  other.join();
  EXPECT_TRUE(same_bits(first, plain));
  EXPECT_TRUE(same_bits(second, plain));
  EXPECT_TRUE(std::filesystem::is_empty(folder->path()));
  const Course without_folder = train(config, {.observer = [&](int) -> Observer {
                                        return [&](int64_t step, const Action&, const RankProgram&, std::byte*) {
                                          std::error_code ignored;
                                          if (step == 3) std::filesystem::remove_all(folder->path(), ignored);
                                        };
                                      }});
  EXPECT_FALSE(std::filesystem::exists(folder->path()));
  EXPECT_TRUE(same_bits(without_folder, plain));
}

TEST(OffloadToFiles, AFileThatBecameShorterEndsTheRunOnAllRanksAndNamesTheFolder) {
  const HangLimit limit(60);
  for (const char* offload : {"optimizer", "params"}) {  // activations are written anew before they are read
    const TemporaryFolder folder;
    RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(2, 2, 3, 4, ReduceEvery::Micro));
    config.layout.offload = offload;
    config.offload_to = "nvme:" + folder.path().string();
    const TrainHooks shorten{.observer = [&](int world_rank) -> Observer {
      return [&, world_rank](int64_t step, const Action& action, const RankProgram&, std::byte*) {
        if (world_rank == 1 && step == 2 && action.kind == Kind::Clip)
          for (const auto& file : unnamed_files_of(folder.path())) std::filesystem::resize_file(file, 0);
      };
    }};
    try {
      train(config, shorten);
      ADD_FAILURE() << offload << ": the run went on";
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr(folder.path().string()),
                                               testing::HasSubstr("shorter than it was made")));
    }
  }
}

}  // namespace
}  // namespace shardpipe
