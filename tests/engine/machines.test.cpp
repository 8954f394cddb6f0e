// One executor, three machines: what is computed, slept through and logged is the same program.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <thread>

#include "comm/local/local_world.h"
#include "engine/lanes.h"
#include "equivalence/tiny.h"
#include "program/text.h"
#include "support/count_allocations.h"

namespace shardpipe {
namespace {

Step tiny_step(const Model& model, const Layout& layout) { return make_step(model, layout, 2); }

TEST(LogMachine, EachLaneRunsItsActionsInIssueOrder) {
  const Model model = make_model(tiny_gpt2());
  const Step step = tiny_step(model, tiny_layout(2, 2, 3, 3, ReduceEvery::Micro));
  for (uint16_t r = 0; r < 2; ++r) {
    const RankProgram& rank = step.training.by_pipeline_rank[r];
    std::vector<std::vector<std::string>> logs;
    LaneStreams lanes(std::array{&rank}, "log");
    LaneMachine machine(rank, bind_log(step.training, {.pipeline_rank = r}, logs), lanes);
    Timeline timeline;
    execute(rank, machine, timeline);
    std::vector<std::vector<std::string>> expected(lane_count);
    for (const Action& action : rank.actions)
      expected[static_cast<size_t>(action.lane)].push_back(describe(rank, action));
    EXPECT_EQ(logs, expected);
    ASSERT_EQ(timeline.size(), rank.actions.size());
    for (size_t i = 0; i < rank.actions.size(); ++i)
      for (uint32_t w = 0; w < rank.actions[i].wait_count; ++w)
        EXPECT_LE(timeline[rank.waits[rank.actions[i].first_wait + w]].end_seconds, timeline[i].begin_seconds);
  }
}

// Compute of fixed length, communication for real: the pipeline's dependencies show in the measured timeline.
TEST(SleepMachine, ForwardsOfLaterStagesBeginAfterThoseOfEarlierOnes) {
  const Model model = make_model(tiny_gpt2());
  const Step step = tiny_step(model, tiny_layout(3, 1, 0, 4, ReduceEvery::Step));
  LocalWorld world(3);
  std::vector<Timeline> timelines(3);
  run_ranks(world, [&](int r) {
    RankPlace place{.pipeline_rank = static_cast<uint16_t>(r)};
    const auto communicators = join_groups(step.training, step.shape, place, world, "sleep");
    place.communicators = &communicators;
    const RankProgram& rank = step.training.by_pipeline_rank[place.pipeline_rank];
    Arena arena(rank.arena_bytes);
    LaneStreams lanes(std::array{&rank}, "sleep", [&](const std::exception_ptr& error) { world.abort(error, r); });
    LaneMachine machine(rank,
                        bind_sleep(step.training, step.shape, place, arena.at(0),
                                   [](const Action&) { return std::chrono::microseconds(200); }),
                        lanes);
    execute(rank, machine, timelines[static_cast<size_t>(r)]);
  });
  std::map<std::pair<int, int>, Span> forwards, backwards;  // of (block, micro-batch)
  for (size_t r = 0; r < 3; ++r) {
    const RankProgram& rank = step.training.by_pipeline_rank[r];
    for (size_t i = 0; i < rank.actions.size(); ++i) {
      const Action& action = rank.actions[i];
      if (action.kind == Kind::Forward) forwards[{action.index, action.micro_batch}] = timelines[r][i];
      if (action.kind == Kind::Backward) backwards[{action.index, action.micro_batch}] = timelines[r][i];
    }
  }
  const int blocks = static_cast<int>(model.blocks.size());
  ASSERT_EQ(forwards.size(), static_cast<size_t>(blocks * 4));
  for (int m = 0; m < 4; ++m)
    for (int b = 0; b < blocks; ++b) {
      const Span forward = forwards.at({b, m}), backward = backwards.at({b, m});
      EXPECT_GE(forward.end_seconds - forward.begin_seconds, 200e-6);
      EXPECT_LE(forward.end_seconds, backward.begin_seconds);
      if (b + 1 < blocks) {
        EXPECT_LE(forward.end_seconds, forwards.at({b + 1, m}).begin_seconds);
        EXPECT_LE((backwards.at({b + 1, m}).end_seconds), backward.begin_seconds);
      }
    }
}

// Seeded pauses before every action, on every lane of every rank, change no bit.
TEST(CpuMachine, DelaysOnLanesChangeNoBit) {
  RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(2, 2, 3, 3, ReduceEvery::Micro));
  config.steps = 2;
  const std::string undisturbed = run_tiny(config).params_digest;
  for (uint32_t seed = 0; seed < 5; ++seed) {
    TrainHooks hooks;
    hooks.observer = [seed](int rank) -> Observer {
      return [seed, rank](int64_t, const Action& action, const RankProgram& program, std::byte*) {
        const auto index = static_cast<uint32_t>(&action - program.actions.data());
        std::minstd_rand random(seed * 7919 + static_cast<uint32_t>(rank) * 104729 + index * 31 + 1);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
      };
    };
    EXPECT_EQ(run_tiny(config, hooks).params_digest, undisturbed) << "seed " << seed;
  }
}

// Each rank in turn is the slow one, under every schedule: no order of messages may depend on who is late.
TEST(CpuMachineSlow, OneSlowRankChangesNoBitOfAnySchedule) {
  for (const std::string& schedule : schedule_names()) {
    ModelConfig model = tiny_gpt2();
    model.layers = 6;  // eight blocks, for two chunks on each of four ranks
    RunConfig config = tiny_run(model, tiny_layout(4, 1, 0, 8, ReduceEvery::Step, schedule));
    config.steps = 1;
    const std::string undisturbed = run_tiny(config).params_digest;
    for (int slow = 0; slow < 4; ++slow) {
      TrainHooks hooks;
      hooks.observer = [slow](int rank) -> Observer {
        return [slow, rank](int64_t, const Action&, const RankProgram&, std::byte*) {
          if (rank == slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        };
      };
      EXPECT_EQ(run_tiny(config, hooks).params_digest, undisturbed) << schedule << ", rank " << slow << " is slow";
    }
  }
}

TEST(CpuMachine, AStepAllocatesNothing) {
  const Model model = make_model(tiny_gpt2());
  for (const int zero : {0, 1, 2, 3}) {
    const Layout layout = tiny_layout(2, 2, zero, 3, ReduceEvery::Micro);
    const Step step = tiny_step(model, layout);
    LocalWorld world(4);
    std::atomic<uint64_t> counted = 0;
    const SampleSource samples = random_samples(1, model.config.vocab_size);
    run_ranks(world, [&](int r) {
      Rank rank(step, world, r);
      rank.initialise(1);
      rank.settings = {
          .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .gradient_clip = 1, .step = 1};
      std::vector<int32_t> unread(static_cast<size_t>(model.config.seq_len));
      for (uint16_t m = 0; m < 3; ++m) {
        const auto tokens = rank.tokens(m), targets = rank.targets(m);
        samples(m, tokens.empty() ? std::span(unread) : tokens, targets.empty() ? std::span(unread) : targets);
      }
      const auto barrier = world.join("barrier", {0, 1, 2, 3}, r);
      for (int warm_up = 0; warm_up < 2; ++warm_up) rank.train_step();  // kernels make what they keep for a shape
      barrier->barrier();
      const uint64_t before = allocations.load();
      barrier->barrier();
      for (int k = 0; k < 3; ++k) rank.train_step();
      barrier->barrier();
      if (r == 0) counted = allocations.load() - before;
      barrier->barrier();
    });
    EXPECT_EQ(counted, 0u) << "zero " << zero;
  }
}

// A rank that fails anywhere in a step stops all others with its error.
TEST(CpuMachine, ARankThatThrowsStopsAllWithItsError) {
  const RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(2, 2, 3, 3, ReduceEvery::Micro));
  const Model model = make_model(config.model);
  const size_t actions = make_step(model, config.layout, 2).training.by_pipeline_rank[1].actions.size();
  for (size_t at = 0; at < actions; at += 7) {
    TrainHooks hooks;
    hooks.observer = [at](int rank) -> Observer {
      return [at, rank](int64_t, const Action& action, const RankProgram& program, std::byte*) {
        if (rank == 3 && &action == &program.actions[at]) throw std::runtime_error("rank 3 has had enough");
      };
    };
    try {
      run_tiny(config, hooks);
      ADD_FAILURE() << "action " << at << " threw, the run did not";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "rank 3 has had enough") << "action " << at;
    }
  }
}

TEST(CpuMachine, ATokenOutsideTheVocabularyIsNamedAndEndsTheRun) {
  const RunConfig config = tiny_run(tiny_gpt2(), tiny_layout(2, 2, 1, 2, ReduceEvery::Step));
  const Model model = make_model(config.model);
  const Step step = make_step(model, config.layout, 2);
  const SampleSource good = random_samples(1, 65);
  const SampleSource bad = [&](int64_t sample, std::span<int32_t> inputs, std::span<int32_t> targets) {
    good(sample, inputs, targets);
    if (sample == 6) inputs[3] = 65;
  };
  try {
    run_training(config, step, {.train = bad, .held_out = nullptr});
    FAIL() << "token 65 of a vocabulary of 65 was taken";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("65"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace shardpipe
