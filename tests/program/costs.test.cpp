#include "program/costs.h"

#include <gtest/gtest.h>

#include "program/cases.h"
#include "program/compile.h"

namespace shardpipe {
namespace {

Program with_groups(std::vector<Group> groups) { return {.groups = std::move(groups), .by_pipeline_rank = {}}; }

// Four pipeline ranks × eight replicas, or fewer, on nodes of eight.
TEST(Nodes, MembersAreCountedWhereTheyAreFewest) {
  const Program program = with_groups({{"forward 0>1", {0, 1}, Replicas::Own},
                                       {"gather 0", {1}, Replicas::All},
                                       {"gather in the group", {1}, Replicas::ShardGroup},
                                       {"copies", {1}, Replicas::AcrossGroups},
                                       {"tied", {0, 3}, Replicas::Own},
                                       {"world", {0, 1, 2, 3}, Replicas::All}});
  using Members = std::vector<uint32_t>;
  EXPECT_EQ(members_in_a_node(program, 8, 2, 8), (Members{1, 8, 4, 2, 1, 8}));   // a node a pipeline rank
  EXPECT_EQ(members_in_a_node(program, 2, 1, 8), (Members{2, 2, 2, 1, 2, 8}));   // all in one node
  EXPECT_EQ(members_in_a_node(program, 4, 2, 8), (Members{2, 4, 2, 2, 1, 8}));   // two pipeline ranks a node
  EXPECT_EQ(members_in_a_node(program, 32, 4, 8), (Members{1, 8, 8, 1, 1, 8}));  // four nodes a pipeline rank
  EXPECT_EQ(members_in_a_node(program, 3, 1, 8), (Members{2, 3, 3, 1, 1, 4}));   // the third pipeline rank lies across
  EXPECT_EQ(members_in_a_node(program, 8, 2, 1000), (Members{2, 8, 4, 2, 2, 32}));  // one node for all
}

Program one_action(Kind kind, Replicas replicas, std::vector<uint16_t> pipeline_ranks, uint64_t bytes) {
  Program program = with_groups({{"group", std::move(pipeline_ranks), replicas}});
  RankProgram rank;
  rank.buffers = {{.role = kind == Kind::Unshard ? Role::Parameters : Role::Activation, .index = 0, .bytes = bytes}};
  rank.uses = {{0, kind == Kind::Send ? Access::Read : Access::Write}};
  rank.actions = {{.kind = kind, .index = 0, .group = 0, .use_count = 1}};
  program.by_pipeline_rank = {rank, rank};
  return program;
}

TEST(Nodes, AMessageTakesTheLinkThatItCrosses) {
  const Program program = one_action(Kind::Send, Replicas::Own, {0, 1}, 1000);
  CostModel costs{.blocks = {}, .message = {1, 0.001}, .collective = {}, .update = {}, .dp = 4};
  costs.nodes = {.members = {}, .message = {10, 0.01}, .collective = {}};
  const Action& send = program.by_pipeline_rank[0].actions[0];
  EXPECT_DOUBLE_EQ(seconds_of(costs, program, 0, send), 2);
  costs.nodes.members = members_in_a_node(program, 4, 1, 8);
  EXPECT_DOUBLE_EQ(seconds_of(costs, program, 0, send), 2);
  costs.nodes.members = members_in_a_node(program, 4, 1, 4);
  EXPECT_DOUBLE_EQ(seconds_of(costs, program, 0, send), 20);
}

// 16 ranks gather 1,600 bytes, of which each sends 1,500; on nodes of four, of eight links at a quarter of the speed.
TEST(Nodes, ACollectiveLeavesANodeByTheLinksOfItsMembers) {
  const Program program = one_action(Kind::Unshard, Replicas::All, {0}, 1600);
  CostModel costs{.blocks = {}, .message = {}, .collective = {1, 0.001}, .update = {}, .dp = 16};
  costs.nodes = {.members = {}, .message = {}, .collective = {10, 0.008}, .per_node_seconds = 0.5};
  const Action& gather = program.by_pipeline_rank[0].actions[0];
  EXPECT_DOUBLE_EQ(seconds_of(costs, program, 0, gather), 1 + 1.5);
  costs.nodes.members = members_in_a_node(program, 16, 1, 4);
  EXPECT_DOUBLE_EQ(seconds_of(costs, program, 0, gather), 10 + 3 * 0.5 + 1500 * 0.002);
  costs.nodes.members = members_in_a_node(program, 16, 1, 1);
  EXPECT_DOUBLE_EQ(seconds_of(costs, program, 0, gather), 10 + 15 * 0.5 + 1500 * 0.008);
  costs.nodes.collective.seconds_per_byte = 0.0002;  // no faster than the links inside
  costs.nodes.members = members_in_a_node(program, 16, 1, 8);
  EXPECT_DOUBLE_EQ(seconds_of(costs, program, 0, gather), 10 + 0.5 + 1500 * 0.001);
}

// Every program's groups are counted, and one node for all prices as no nodes at all.
TEST(Nodes, OneForAllChangesNoPrice) {
  const Model model = tiny_model(6, true);
  Layout layout = tiny_layout("1f1b", 4, 4, 3, ReduceEvery::Micro, 4);
  layout.replicate = 2;
  const Program program = compile(step_shape(model, layout, 2));
  CostModel costs{.blocks = {{1, 1, 1}},
                  .message = {1, 0.5},
                  .collective = {2, 0.25},
                  .update = {3, 0.125},
                  .dp = 4,
                  .replicate = 2};
  CostModel on_nodes = costs;
  on_nodes.nodes = {.members = members_in_a_node(program, 4, 2, 16), .message = {100, 100}, .collective = {100, 100}};
  ASSERT_EQ(on_nodes.nodes.members.size(), program.groups.size());
  CostModel apart = on_nodes;
  apart.nodes.members = members_in_a_node(program, 4, 2, 1);
  int slower = 0;
  for (uint16_t r = 0; r < 4; ++r)
    for (const Action& action : program.by_pipeline_rank[r].actions) {
      EXPECT_EQ(seconds_of(costs, program, r, action), seconds_of(on_nodes, program, r, action));
      slower += seconds_of(apart, program, r, action) > seconds_of(costs, program, r, action) ? 1 : 0;
      EXPECT_EQ(seconds_of(apart, program, r, action) > seconds_of(costs, program, r, action), action.group != none);
    }
  EXPECT_GT(slower, 0);
}

}  // namespace
}  // namespace shardpipe
