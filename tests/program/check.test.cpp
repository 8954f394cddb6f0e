// A checker that is tested: programs with one small wrong, of every kind that we could think of.
#include "program/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "program/cases.h"
#include "program/mutate.h"

namespace shardpipe {
namespace {

using testing::HasSubstr;

// A program small enough to reason about, with what judges changes to it.
struct Specimen {
  Model model;
  StepShape shape;
  Program program;
  Symbols symbols;
  Outcome right;

  Specimen(const Layout& layout, bool tied)
      : model(tiny_model(2, tied)), shape(step_shape(model, layout, 2)), program(compile(shape)) {
    right = interpret(program, shape, symbols, 0, true);
  }
  Specimen(const Specimen&) = delete;
};

Layout recomputing(const char* rule, Layout layout) {
  layout.recompute = rule;
  return layout;
}

Layout with_zero(std::vector<int> of_ranks, Layout layout) {
  layout.zero_of_ranks = std::move(of_ranks);
  return layout;
}

Layout in_copies(int64_t replicate, Layout layout) {
  layout.replicate = replicate;
  return layout;
}

Layout reducing_in_bf16(Layout layout) {
  layout.reduce_dtype = DType::BFloat16;
  return layout;
}

Layout reproducible(Layout layout) {
  layout.reproducible = true;
  return layout;
}

Layout offloading(const char* offload, Layout layout) {
  layout.offload = offload;
  layout.offload_piece = 60;
  return layout;
}

const std::vector<std::pair<Layout, bool>>& specimens() {
  static const std::vector<std::pair<Layout, bool>> layouts{
      {tiny_layout("1f1b", 2, 3, 3, ReduceEvery::Micro), true},
      {tiny_layout("1f1b", 2, 2, 3, ReduceEvery::Step, 2, false), true},
      {tiny_layout("gpipe", 2, 2, 1, ReduceEvery::Step), true},
      {tiny_layout("1f1b", 3, 3, 0, ReduceEvery::Step), false},
      {tiny_layout("1f1b", 1, 2, 2, ReduceEvery::Micro), true},
      {tiny_layout("gpipe", 1, 2, 0, ReduceEvery::Micro), false},
      {in_copies(2, tiny_layout("1f1b", 2, 2, 3, ReduceEvery::Micro, 4)), true},
      {in_copies(2, tiny_layout("gpipe", 2, 2, 1, ReduceEvery::Step, 2)), false},
      {with_zero({3, 1}, tiny_layout("1f1b", 2, 2, 0, ReduceEvery::Step)), true},
      {recomputing("full", tiny_layout("1f1b", 2, 2, 3, ReduceEvery::Micro)), true},
      {recomputing("selective", tiny_layout("zb-h1", 2, 2, 1, ReduceEvery::Step)), false},
      {recomputing("blocks:2-3", tiny_layout("zb-h1", 2, 3, 0, ReduceEvery::Step, 1)), true},
      {reducing_in_bf16(tiny_layout("1f1b", 2, 2, 3, ReduceEvery::Micro)), true},
      {reducing_in_bf16(in_copies(2, tiny_layout("gpipe", 2, 2, 1, ReduceEvery::Step, 2))), false},
      {reproducible(tiny_layout("1f1b", 2, 2, 3, ReduceEvery::Micro)), true},
      {reproducible(tiny_layout("zb-h1", 2, 3, 0, ReduceEvery::Step)), false},
      {reproducible(in_copies(2, tiny_layout("gpipe", 2, 2, 1, ReduceEvery::Step, 4))), true},
      {reproducible(in_copies(2, tiny_layout("1f1b", 1, 2, 2, ReduceEvery::Micro, 2))), true},
      {offloading("optimizer,params,activations", tiny_layout("1f1b", 2, 3, 3, ReduceEvery::Micro)), true},
      {offloading("optimizer,params", tiny_layout("gpipe", 1, 1, 1, ReduceEvery::Step)), true},
      {offloading("optimizer,params,activations",
                  recomputing("selective", tiny_layout("zb-h1", 2, 2, 0, ReduceEvery::Step))),
       false},
  };
  return layouts;
}

std::string told(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) text += finding.rule + ": " + finding.where + "\n";
  return text;
}

// At least one finding says which rank; all have a rule.
void expect_told(const std::vector<Finding>& findings, const std::string& what) {
  EXPECT_THAT(told(findings), HasSubstr("rank")) << what;
  for (const Finding& finding : findings) EXPECT_FALSE(finding.rule.empty() || finding.where.empty()) << what;
}

// Every action of every specimen, taken away.
TEST(Check, EveryMissingActionIsFound) {
  for (const auto& [layout, tied] : specimens()) {
    const Specimen s(layout, tied);
    for (size_t r = 0; r < s.program.by_pipeline_rank.size(); ++r)
      for (uint32_t i = 0; i < s.program.by_pipeline_rank[r].actions.size(); ++i) {
        Program changed = s.program;
        std::vector<uint32_t> order = in_order(changed.by_pipeline_rank[r]);
        order.erase(order.begin() + i);
        rearrange(changed, r, order);
        expect_told(check(changed), fmt::format("{}: rank {} without {}", to_string(layout), r,
                                                name_of(s.program.by_pipeline_rank[r].actions[i])));
      }
  }
}

// Where one is accepted, the judge must find it harmless too.
struct Tally {
  int refused = 0, harmless = 0;
};
void judge(Specimen& s, const Program& changed, const std::string& what, Tally& tally) {
  const std::vector<Finding> findings = check(changed);
  if (!findings.empty()) {
    expect_told(findings, what);
    ++tally.refused;
    return;
  }
  EXPECT_EQ(harm(changed, s.shape, s.right, s.symbols), "") << what << " is accepted";
  ++tally.harmless;
}

// Replicas would be summed from other bits than in another layout.
TEST(Check, AGradientThatIsNotRoundedLikeTheOthersIsFound) {
  for (const auto& [layout, tied] : specimens()) {
    if (layout.reduce_dtype == DType::Float32) continue;
    const Specimen s(layout, tied);
    for (size_t r = 0; r < s.program.by_pipeline_rank.size(); ++r)
      for (const uint32_t i : actions_of(s.program.by_pipeline_rank[r], Kind::Reduce)) {
        Program changed = s.program;
        RankProgram& rank = changed.by_pipeline_rank[r];
        Action& action = rank.actions[i];
        if (action.index == none || reduce_uses(rank, action).wire == UINT32_MAX) continue;
        std::vector<Use> kept;
        for (const Use& use : uses_of(rank, action))
          if (rank.buffers[use.buffer].role != Role::WireGradient) kept.push_back(use);
        action.first_use = static_cast<uint32_t>(rank.uses.size());
        action.use_count = static_cast<uint32_t>(kept.size());
        rank.uses.insert(rank.uses.end(), kept.begin(), kept.end());
        EXPECT_THAT(told(check(changed)), HasSubstr("gradients are reduced in one type"))
            << to_string(layout) << ": rank " << r << ", " << name_of(action);
      }
  }
}

TEST(Check, ARepeatedActionIsFoundOrHarmless) {
  Tally tally;
  for (const auto& [layout, tied] : specimens()) {
    Specimen s(layout, tied);
    for (size_t r = 0; r < s.program.by_pipeline_rank.size(); ++r)
      for (uint32_t i = 0; i < s.program.by_pipeline_rank[r].actions.size(); ++i) {
        Program changed = s.program;
        std::vector<uint32_t> order = in_order(changed.by_pipeline_rank[r]);
        order.insert(order.begin() + i, i);
        rearrange(changed, r, order);
        judge(s, changed,
              fmt::format("{}: rank {} does {} twice", to_string(layout), r,
                          describe(s.program.by_pipeline_rank[r], s.program.by_pipeline_rank[r].actions[i])),
              tally);
      }
  }
  EXPECT_GT(tally.refused, 10 * tally.harmless);
}

TEST(Check, EveryMissingWaitIsFoundOrHarmless) {
  Tally tally;
  for (const auto& [layout, tied] : specimens()) {
    Specimen s(layout, tied);
    for (size_t r = 0; r < s.program.by_pipeline_rank.size(); ++r)
      for (uint32_t w = 0; w < s.program.by_pipeline_rank[r].waits.size(); ++w) {
        Program changed = s.program;
        remove_wait(changed.by_pipeline_rank[r], w);
        judge(s, changed, fmt::format("{}: rank {} without wait {}", to_string(layout), r, w), tally);
      }
  }
  EXPECT_GT(tally.refused, tally.harmless);
}

// Neighbours of one kind, exchanged: sends, gathers in another order on one rank, backwards of two micro-batches, …
TEST(Check, ExchangedActionsOfOneKindAreFoundOrHarmless) {
  Tally tally;
  for (const auto& [layout, tied] : specimens()) {
    Specimen s(layout, tied);
    for (size_t r = 0; r < s.program.by_pipeline_rank.size(); ++r)
      for (const Kind kind : {Kind::Forward, Kind::Recompute, Kind::Backward, Kind::BackwardInput, Kind::BackwardWeight,
                              Kind::Send, Kind::Receive, Kind::Unshard, Kind::Reduce, Kind::AddExact, Kind::Round,
                              Kind::OptimizerStep, Kind::Fetch, Kind::Offload}) {
        const std::vector<uint32_t> same = actions_of(s.program.by_pipeline_rank[r], kind);
        for (size_t k = 1; k < same.size(); ++k) {
          Program changed = s.program;
          std::vector<uint32_t> order = in_order(changed.by_pipeline_rank[r]);
          std::swap(order[same[k - 1]], order[same[k]]);
          rearrange(changed, r, order);
          judge(s, changed,
                fmt::format("{}: rank {} exchanges {} and {}", to_string(layout), r,
                            describe(s.program.by_pipeline_rank[r], s.program.by_pipeline_rank[r].actions[same[k - 1]]),
                            name_of(s.program.by_pipeline_rank[r].actions[same[k]])),
                tally);
        }
      }
  }
  EXPECT_GT(tally.refused, tally.harmless);
}

// Swapped, moved, repeated, dropped, given to another rank, a wait removed: 1,200 of them, one or two at a time.
TEST(Check, RandomChangesOfTheListsAreFoundOrHarmless) {
  std::mt19937 random(3);
  Tally tally;
  for (const auto& [layout, tied] : specimens()) {
    Specimen s(layout, tied);
    for (int n = 0; n < 200; ++n) {
      Program changed = s.program;
      std::string what = to_string(layout) + ": " + mutate(changed, random);
      if (n % 2 == 0) what += ", " + mutate(changed, random);
      if (changed != s.program) judge(s, changed, what, tally);
    }
  }
  EXPECT_GT(tally.refused + tally.harmless, 1'000);
  EXPECT_GT(tally.harmless, 50);
}

TEST(Check, RandomWrongsAreFoundOrHarmless) {
  const char* asked = std::getenv("SHARDPIPE_TEST_SEED");  // to look further than the one that every run repeats
  const auto seed = static_cast<uint32_t>(asked == nullptr ? 20240607 : std::atol(asked));
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const auto below = [&](size_t n) { return static_cast<uint32_t>(random() % n); };
  Tally tally;
  for (const auto& [layout, tied] : specimens()) {
    Specimen s(layout, tied);
    for (int n = 0; n < 250; ++n) {
      Program changed = s.program;
      const size_t r = below(changed.by_pipeline_rank.size());
      RankProgram& rank = changed.by_pipeline_rank[r];
      const uint32_t i = below(rank.actions.size()), j = below(rank.actions.size());
      std::vector<uint32_t> order = in_order(rank);
      std::string what;
      switch (n % 8) {
        case 0:
          what = fmt::format("moves {} to {}", i, j);
          order.erase(order.begin() + i);
          order.insert(order.begin() + std::min<size_t>(j, order.size()), i);
          rearrange(changed, r, order);
          break;
        case 1:
          what = fmt::format("exchanges {} and {}", i, j);
          std::swap(order[i], order[j]);
          rearrange(changed, r, order);
          break;
        case 2: {  // an address onto another buffer's
          const uint32_t a = below(rank.buffers.size()), b = below(rank.buffers.size());
          what = fmt::format("puts {} onto {}", name_of(rank.buffers[a]), name_of(rank.buffers[b]));
          rank.buffers[a].offset = rank.buffers[b].offset;
          rank.arena_bytes = std::max(rank.arena_bytes, rank.buffers[a].offset + rank.buffers[a].bytes);
          break;
        }
        case 3: {  // an action uses another buffer, ended or not
          Use& use = rank.uses[below(rank.uses.size())];
          const uint32_t other = below(rank.buffers.size());
          what = fmt::format("uses {} for {}", name_of(rank.buffers[other]), name_of(rank.buffers[use.buffer]));
          use.buffer = other;
          break;
        }
        case 4: {  // the access of a use
          const uint32_t u = below(rank.uses.size());
          what = fmt::format("another access of use {}, {}", u, name_of(rank.buffers[rank.uses[u].buffer]));
          rank.uses[u].access = static_cast<Access>((static_cast<int>(rank.uses[u].access) + 1 + below(2)) % 3);
          break;
        }
        case 5:
          what = fmt::format("changes a name or extent of {}", i);
          switch (below(4)) {
            case 0:
              rank.actions[i].micro_batch = static_cast<uint16_t>(below(4));
              break;
            case 1:
              rank.actions[i].index = static_cast<uint16_t>(below(5));
              break;
            case 2:
              rank.actions[i].extent = rank.actions[i].extent == Extent::Whole ? Extent::Owned : Extent::Whole;
              break;
            default:
              rank.actions[i].kind = static_cast<Kind>(below(10));
          }
          break;
        case 6:
          what = fmt::format("speaks to another group in {}", i);
          rank.actions[i].group = static_cast<uint16_t>(below(changed.groups.size()));
          rearrange(changed, r, order);
          break;
        default: {
          Group& group = changed.groups[below(changed.groups.size())];
          what = fmt::format("changes group {}", group.name);
          if (below(2) == 0)
            group.replicas = group.replicas == Replicas::Own ? Replicas::All : Replicas::Own;
          else
            group.pipeline_ranks.front() = static_cast<uint16_t>(below(changed.by_pipeline_rank.size() + 1));
        }
      }
      if (changed == s.program) continue;
      judge(s, changed, fmt::format("{}: rank {} {} (change {})", to_string(layout), r, what, n), tally);
    }
  }
  EXPECT_GT(tally.refused + tally.harmless, 1300);
  EXPECT_GT(tally.refused, 3 * tally.harmless);
}

// Numbers that lead nowhere are told, never followed.
TEST(Check, NumbersOutOfRangeAreFound) {
  const Specimen s(tiny_layout("1f1b", 2, 2, 3, ReduceEvery::Micro), true);
  const auto expect_found = [&](auto change, const std::string& rule) {
    Program changed = s.program;
    change(changed.by_pipeline_rank[1]);
    EXPECT_THAT(told(check(changed)), HasSubstr(rule));
  };
  expect_found([](RankProgram& r) { r.uses[0].buffer = 1u << 31; }, "uses name buffers of the rank");
  expect_found([](RankProgram& r) { r.actions[2].first_use = UINT32_MAX; }, "uses and waits are in range");
  expect_found([](RankProgram& r) { r.actions[2].wait_count = UINT32_MAX; }, "uses and waits are in range");
  expect_found([](RankProgram& r) { r.waits[0] = UINT32_MAX; }, "a wait is for an earlier action on another lane");
  expect_found([](RankProgram& r) { r.buffers[0].offset = UINT64_MAX; }, "buffers lie in the arena");
  expect_found([](RankProgram& r) { r.buffers[0].bytes = UINT64_MAX; }, "buffers lie in the arena");
  expect_found([](RankProgram& r) { r.arena_bytes = 0; }, "buffers lie in the arena");
  expect_found([](RankProgram& r) { r.actions[0].group = 77; }, "actions name groups of the program");
  expect_found([](RankProgram& r) { r.actions[actions_of(r, Kind::Forward)[0]].micro_batch = none; },
               "an action names its block and micro-batch");
  expect_found([](RankProgram& r) { r.actions[actions_of(r, Kind::Forward)[0]].index = 60000; },
               "numbered from 0 without a gap");
  Program stranger = s.program;
  stranger.groups[0].pipeline_ranks.assign(3, 9);
  EXPECT_THAT(told(check(stranger)), HasSubstr("a group's members are ranks"));
}

TEST(Check, AnEmptyProgramHasNothingWrong) { EXPECT_EQ(told(check(Program{})), ""); }

// PipeDream's 1F1B with messages placed where they are used deadlocks on one lane from two micro-batches on
// (rank 0 sends activation 1 while rank 1 sends gradient 0): the checker must see it.
TEST(Check, MessagesPlacedWhereTheyAreUsedWaitForEver) {
  const Specimen s(tiny_layout("1f1b", 2, 3, 0, ReduceEvery::Step), false);
  Program changed = s.program;
  place_messages_where_used(changed);
  EXPECT_THAT(told(check(changed)), HasSubstr("nothing waits for ever: rank 0"));
}

}  // namespace
}  // namespace shardpipe
