// What the checks let pass trains to the same bits: PyTorch's schedules, schedules changed at random, and whole step
// programs changed at random.
#include <fstream>
#include <iterator>

#include "equivalence/course.h"
#include "program/check.h"
#include "program/mutate.h"
#include "schedules/mutate.h"
#include "schedules/text.h"
#include "schedules/torch_csv.h"
#include "test_paths.h"

namespace shardpipe {
namespace {

Layout layout_of(const Schedule& schedule, int zero, int64_t dp = 1) {
  Layout layout = tiny_layout(static_cast<int64_t>(schedule.by_rank.size()), dp, zero, schedule.micro_batches,
                              ReduceEvery::Step, "file:" + schedule.name);
  layout.own_schedule = schedule;
  return layout;
}

RunConfig run_of(const Schedule& schedule, int zero, int64_t dp = 1) {
  ModelConfig model = tiny_gpt2();
  model.layers = std::max<int64_t>(model.layers, schedule.chunks - 2);  // embedding and head are blocks too
  RunConfig config = tiny_run(model, layout_of(schedule, zero, dp));
  config.steps = 3;
  return config;
}

std::string content_of(const std::string& path) {
  std::ifstream file(std::string(TEST_DATA_DIR) + path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SameBitsOfOwnSchedules, OfPyTorch) {
  for (const char* name : {"dualpipev_4rank_10mb", "zb1p_2rank_2stagep_comms", "zb1p_2rank_2stagep_compute"}) {
    const Schedule schedule =
        read_schedule(content_of(fmt::format("/schedules/torch/{}.csv", name)), fmt::format("{}.csv", name));
    for (const auto& [zero, dp] : {std::pair{0, 1}, {3, 1}, {0, 2}, {3, 2}}) {
      const RunConfig config = run_of(schedule, zero, dp);
      EXPECT_TRUE(same_bits(train(config), train_plain(config))) << describe(config);
    }
  }
}

TEST(SameBitsOfOwnSchedules, OfTheExampleOnThePage) {
  const RunConfig config = run_of(read_schedule(content_of("/../docs/examples/two-by-two.schedule"), "example"), 3);
  EXPECT_TRUE(same_bits(train(config), train_plain(config)));
}

TEST(SameBitsOfOwnSchedules, ChangedAtRandomWhereTheyStayValid) {
  Chance chance(11);
  std::map<std::pair<int64_t, int64_t>, Course> plain;  // by layers and micro-batches
  int trained = 0;
  while (trained < 40) {
    const auto all = generators();
    const Generator& generator = all[chance.below(all.size())];
    Schedule schedule = make_schedule(generator.name, {.ranks = static_cast<uint16_t>(2 + chance.below(2)),
                                                       .micro_batches = static_cast<uint16_t>(2 + chance.below(4)),
                                                       .chunks_per_rank = generator.usual_chunks});
    const Schedule whole = schedule;
    for (int wrongs = 0; wrongs < 6; ++wrongs) {  // of many, those that leave it valid
      Schedule changed = schedule;
      mutate(changed, chance);
      if (problems_of(changed).empty()) schedule = changed;
    }
    if (schedule == whole) continue;
    const RunConfig config = run_of(schedule, trained % 2 == 0 ? 0 : 3);
    Course& expected = plain[{config.model.layers, schedule.micro_batches}];
    if (expected.losses.empty()) expected = train_plain(config);
    ASSERT_TRUE(same_bits(train(config), expected)) << describe(config) << "\n" << print_schedule(schedule);
    ++trained;
  }
}

// Swaps, moves, repetitions, actions and waits taken away, actions given to another rank: of all that check() passes.
TEST(SameBitsOfOwnSchedules, ProgramsChangedAtRandomWhereTheyStayValid) {
  const auto schedule = [](const char* name) {
    return make_schedule(name, {.ranks = 2, .micro_batches = 3, .chunks_per_rank = 0});
  };
  std::mt19937 random(12);
  for (const auto& [name, zero, dp] :
       {std::tuple{"1f1b", 0, 1}, {"1f1b", 3, 2}, {"zb-h1", 1, 2}, {"interleaved", 3, 2}}) {
    RunConfig config = run_of(schedule(name), zero, dp);
    config.steps = 2;
    const Model model = make_model(config.model);
    const Course plain = train_plain(config);
    const Step whole = make_step(model, config.layout, optimizer_states_per_element(config.optimizer.optimizer));
    int refused = 0, trained = 0;
    while (trained < 8) {
      Step step = whole;
      std::string what;
      for (int wrongs = 0; wrongs < 20; ++wrongs) {
        Program changed = step.training;
        const std::string wrong = mutate(changed, random);
        if (changed == step.training) continue;
        if (!check(changed).empty()) {
          ++refused;
          continue;
        }
        step.training = changed;
        what += wrong + "\n";
      }
      if (step.training == whole.training) continue;
      SCOPED_TRACE(describe(config) + "\n" + what);
      Course course;
      ASSERT_NO_THROW(course = train(config, step, random_samples(config.seed, config.model.vocab_size)));
      ASSERT_TRUE(same_bits(course, plain));
      ++trained;
    }
    EXPECT_GT(refused, 20);
  }
}

}  // namespace
}  // namespace shardpipe
