// Schedules broken at random: check.h and a judge that simply runs them (mutate.h) must agree on each, both ways.
#include <gmock/gmock.h>

#include "base/error.h"
#include "schedules/every_schedule.h"
#include "schedules/mutate.h"
#include "schedules/torch_csv.h"

namespace shardpipe {
namespace {

std::string in_words(const std::vector<ScheduleProblem>& problems) {
  std::string text;
  for (const ScheduleProblem& problem : problems) text += problem.rule + ": " + to_string(problem) + "\n";
  return text;
}

// What is refused although it could run: cells that run together in another form than two, a forward and a backward.
bool is_of_form_alone(const std::vector<ScheduleProblem>& problems) {
  return std::ranges::all_of(problems, [](const ScheduleProblem& problem) { return problem.rule == "pair"; });
}

struct Tally {
  int valid = 0, hang = 0, wrong = 0, form = 0;
};

// Where they disagree, both views are told.
template <typename Describe>
void expect_agreement(const std::vector<ScheduleProblem>& problems, const std::string& verdict, const Describe& what,
                      Tally& tally) {
  if (problems.empty()) {
    EXPECT_EQ(verdict, "") << what();
  } else if (verdict.empty()) {
    EXPECT_TRUE(is_of_form_alone(problems)) << what() << in_words(problems);
    ++tally.form;
    return;
  }
  for (const ScheduleProblem& problem : problems) EXPECT_FALSE(problem.text.empty()) << what();
  ++(problems.empty() ? tally.valid : verdict.find("hangs") != std::string::npos ? tally.hang : tally.wrong);
}

Schedule any_schedule(Chance& chance) {
  const auto between = [&](size_t least, size_t most) {
    return static_cast<uint16_t>(least + chance.below(most - least + 1));
  };
  const Generator& generator = generators()[chance.below(generators().size())];
  return make_schedule(generator.name, {.ranks = between(1, 4),
                                        .micro_batches = between(1, 6),
                                        .chunks_per_rank = between(generator.fewest_chunks,
                                                                   std::min<size_t>(generator.most_chunks, 3))});
}

// Gathers each chunk's parameters for its passes, and reduces its gradients behind the last, as ZeRO 3 does.
LoweredSchedule with_shards(const LoweredSchedule& schedule) {
  LoweredSchedule sharded = schedule;
  for (auto& actions : sharded.by_rank) {
    std::map<uint16_t, size_t> first, last;  // passes of each chunk; of a pair, the place before and behind both
    for (size_t i = 0; i < actions.size(); ++i) {
      if (!is_pass(actions[i].kind)) continue;
      first.try_emplace(actions[i].chunk, i > 0 && actions[i - 1].with_next ? i - 1 : i);
      last[actions[i].chunk] = actions[i].with_next ? i + 1 : i;
    }
    std::vector<LoweredAction> with;
    for (size_t i = 0; i < actions.size(); ++i) {
      for (const auto& [chunk, at] : first)
        if (at == i) with.push_back({LoweredKind::Unshard, chunk});
      with.push_back(actions[i]);
      for (const auto& [chunk, at] : last)
        if (at == i) with.insert(with.end(), {{LoweredKind::Reshard, chunk}, {LoweredKind::ReduceGrad, chunk}});
    }
    actions = std::move(with);
  }
  return sharded;
}

LoweredChannels any_channels(Chance& chance) {
  constexpr int lanes[] = {1, 2, 4}, capacities[] = {0, 0, 1, 2, 8};
  return {.lanes = lanes[chance.below(3)], .capacity = capacities[chance.below(5)]};
}

class MutationOf : public testing::TestWithParam<uint32_t> {};

TEST_P(MutationOf, SchedulesIsJudgedAsTheyRun) {
  SCOPED_TRACE(fmt::format("seed {}", GetParam()));
  Chance chance(GetParam());
  Tally tally;
  for (int round = 0; round < 1'000; ++round) {
    Schedule schedule = any_schedule(chance);
    ASSERT_EQ(Judge::verdict(schedule), "") << print_torch_csv(schedule);
    ASSERT_EQ(in_words(problems_of(schedule)), "");
    std::string what;
    for (size_t wrongs = 1 + chance.below(3); wrongs > 0; --wrongs) what += mutate(schedule, chance) + "\n";
    expect_agreement(
        problems_of(schedule), Judge::verdict(schedule), [&] { return what + print_torch_csv(schedule); }, tally);
  }
  EXPECT_GT(tally.valid, 50);
  EXPECT_GT(tally.hang, 50);
  EXPECT_GT(tally.wrong, 50);
}

TEST_P(MutationOf, LoweredSchedulesIsJudgedAsTheyRun) {
  SCOPED_TRACE(fmt::format("seed {}", GetParam()));
  Chance chance(GetParam() + 1'000);
  Tally tally;
  for (int round = 0; round < 1'000; ++round) {
    LoweredSchedule schedule =
        with_messages(any_schedule(chance), chance.below(3) == 0 ? Messages::AtUse : Messages::WhenMade);
    if (chance.below(2) == 0) schedule = with_shards(schedule);
    std::string what;
    for (size_t wrongs = chance.below(4); wrongs > 0; --wrongs) what += mutate(schedule, chance) + "\n";
    const LoweredChannels channels = any_channels(chance);
    what += fmt::format("lanes {}, capacity {}\n", channels.lanes, channels.capacity);
    expect_agreement(
        problems_of(schedule, channels), Judge::verdict(schedule, channels),
        [&] { return what + print_torch_csv(schedule); }, tally);
  }
  EXPECT_GT(tally.valid, 50);
  EXPECT_GT(tally.hang, 50);
  EXPECT_GT(tally.wrong, 50);
}

// Each send, receive, gather and reduction taken away, one at a time: none may be missing.
TEST(Mutation, WithoutAnyMovementIsRefused) {
  for (const std::string& name : schedule_names()) {
    const Schedule made = make_schedule(name, {.ranks = 3, .micro_batches = 4, .chunks_per_rank = 0});
    const LoweredSchedule whole = with_shards(with_messages(made, Messages::WhenMade));
    ASSERT_EQ(in_words(problems_of(whole, {1, 0})), "") << name;
    ASSERT_EQ(Judge::verdict(whole, {1, 0}), "") << name;
    for (size_t rank = 0; rank < whole.by_rank.size(); ++rank)
      for (size_t i = 0; i < whole.by_rank[rank].size(); ++i) {
        const LoweredAction action = whole.by_rank[rank][i];
        if (action.kind == LoweredKind::Reshard) continue;  // a copy held to the end harms nobody
        LoweredSchedule broken = whole;
        broken.by_rank[rank].erase(broken.by_rank[rank].begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_NE(in_words(problems_of(broken, {4, 8})), "") << name << " without " << to_string(action);
      }
  }
}

TEST_P(MutationOf, TorchsOwnIsJudgedAsTheyRun) {
  Chance chance(GetParam() + 2'000);
  Tally tally;
  for (const std::string& name : torch_files) {
    const LoweredSchedule file = parse_torch_csv(content_of_torch_file(name), name + ".csv");
    for (int round = 0; round < 200; ++round) {
      const bool has_messages = name.ends_with("comms");
      LoweredSchedule schedule = has_messages ? file : with_messages(without_movement(file), Messages::WhenMade);
      std::string what = name + "\n" + mutate(schedule, chance);
      const LoweredChannels channels = any_channels(chance);
      expect_agreement(
          problems_of(schedule, channels), Judge::verdict(schedule, channels), [&] { return what; }, tally);
    }
  }
  EXPECT_GT(tally.valid, 20);
  EXPECT_GT(tally.hang + tally.wrong, 100);
}

INSTANTIATE_TEST_SUITE_P(Seeds, MutationOf, testing::Values(1, 2, 3));

}  // namespace
}  // namespace shardpipe
