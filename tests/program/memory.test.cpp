#include "program/memory.h"

#include <gtest/gtest.h>

#include "program/cases.h"
#include "program/lifetime.h"
#include "program/text.h"

namespace shardpipe {
namespace {

// Elements of the parameter groups that a rank holds, each once; and once for each block that uses it.
struct Elements {
  uint64_t once = 0, by_use = 0;
};
Elements elements_of(const StepShape& shape, int64_t rank) {
  Elements sum;
  std::vector<bool> seen(shape.model->groups.size(), false);
  for (const uint16_t b : blocks_of_rank(shape, rank))
    for (const uint16_t group : shape.model->blocks[b].groups) {
      sum.by_use += shape.model->groups[group].elements;
      if (!seen[group]) sum.once += shape.model->groups[group].elements;
      seen[group] = true;
    }
  return sum;
}

// Exact sums, eight bytes an element, each of which makes room for its rounded gradient once that is there. Of one
// replica, padding and all.
uint64_t bytes_of_exact_gradients(const StepShape& shape, int64_t rank) {
  const Model& model = *shape.model;
  const Layout& layout = shape.layout;
  std::vector<uint64_t> uses(model.groups.size(), 0);
  for (const uint16_t b : blocks_of_rank(shape, rank))
    for (const uint16_t group : model.blocks[b].groups) ++uses[group];
  const auto held = [&](uint16_t group, bool sharded) {
    const Shards cut = shape.shards_of(group);
    return sharded ? cut.shard_elements : cut.padded_elements();
  };
  const bool sharded = layout.zero >= 1, sums_sharded = sharded && layout.reduce_every == ReduceEvery::Micro;
  uint64_t now = 0;
  for (uint16_t g = 0; g < model.groups.size(); ++g) now += 8 * uses[g] * held(g, sums_sharded);
  uint64_t peak = now;
  for (uint16_t g = 0; g < model.groups.size(); ++g)
    if (uses[g] == 2) now -= 8 * held(g, sums_sharded);  // both are summed in one
  for (uint16_t g = 0; g < model.groups.size(); ++g)
    if (uses[g] > 0) {
      peak = std::max(peak, now += 4 * held(g, sharded));
      now -= 8 * held(g, sums_sharded);
    }
  return peak;
}

// 4Ψ + 4Ψ + 8Ψ, or 2Ψ + 4Ψ + 12Ψ where blocks compute in 16 bits and masters are kept; of each replica where whole, of
// all replicas together where sharded; padding apart.
TEST(Memory, OfParametersGradientsAndOptimizerIsAsTheZeroStageSays) {
  for_each_case(
      [&](const Case& c) {
        if (testing::Test::HasFailure()) return;
        Layout here = c.layout;
        here.offload = "none";
        const StepShape shape = step_shape(c.model, here, 2);
        const Program program = compile(shape);
        const auto dp = static_cast<uint64_t>(c.layout.dp), copies = static_cast<uint64_t>(c.layout.replicate);
        for (int64_t r = 0; r < c.layout.pp; ++r) {
          const RankProgram& rank = program.by_pipeline_rank[static_cast<size_t>(r)];
          const RankMemory held = memory(rank);
          uint64_t parameters = 0, gradients = 0, optimizer = 0;
          for (uint64_t d = 0; d < dp; ++d) {
            const RankPadding pad = padding(rank, c.model, dp, d, copies);
            parameters += held.parameters - pad.parameters;
            gradients += held.gradients - pad.gradients;
            optimizer += held.optimizer - pad.optimizer;
          }
          const Elements psi = elements_of(shape, r);
          const bool micro = c.layout.reduce_every == ReduceEvery::Micro;
          EXPECT_EQ(parameters, bytes_of(c.layout.precision) * psi.once * (c.layout.zero == 3 ? copies : dp))
              << c.name << ", rank " << r;
          // A group that two blocks of a rank use has a gradient for each until they are summed.
          if (c.layout.reproducible)
            EXPECT_EQ(held.gradients, bytes_of_exact_gradients(shape, r)) << c.name << ", rank " << r;
          else
            EXPECT_EQ(gradients, 4 * psi.by_use * (c.layout.zero >= 1 && micro ? copies : dp))
                << c.name << ", rank " << r;
          EXPECT_EQ(optimizer,
                    (c.layout.precision == DType::Float32 ? 8 : 12) * psi.once * (c.layout.zero >= 1 ? copies : dp))
              << c.name << ", rank " << r;
        }
      },
      3);
}

// What is offloaded is in the store and not in the arena, padding and all; the rest is where it was.
TEST(Memory, OfWhatIsOffloadedLiesInTheStore) {
  for_each_case(
      [&](const Case& c) {
        if (testing::Test::HasFailure() || c.layout.offload == "none") return;
        Layout here = c.layout;
        here.offload = "none";
        const Program program = compile(c.shape()), kept = compile(step_shape(c.model, here, 2));
        const Offload offload = offload_of(c.layout.offload);
        for (size_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
          const RankProgram& rank = program.by_pipeline_rank[r];
          const RankMemory held = memory(rank), all = memory(kept.by_pipeline_rank[r]);
          EXPECT_EQ(held.parameters, offload.parameters ? 0 : all.parameters) << c.name << ", rank " << r;
          EXPECT_EQ(held.optimizer, offload.optimizer ? 0 : all.optimizer) << c.name << ", rank " << r;
          EXPECT_EQ(held.gradients, all.gradients) << c.name << ", rank " << r;
          EXPECT_LE(held.activations, all.activations) << c.name << ", rank " << r;
          uint64_t state = 0;
          for (const Buffer& buffer : rank.buffers)
            if (buffer.stored && buffer.resident) state += buffer.bytes;
          EXPECT_EQ(state, (offload.parameters ? all.parameters : 0) + (offload.optimizer ? all.optimizer : 0))
              << c.name << ", rank " << r;
          EXPECT_GE(rank.store_bytes, state) << c.name << ", rank " << r;
          EXPECT_EQ(rank.store_bytes, held.store);
        }
      },
      5);
}

// The staging memory of an optimizer step does not grow with the model: three pieces of each state.
TEST(Memory, OfAnOffloadedOptimizerStepIsThreePieces) {
  for (const int64_t layers : {2, 4, 8}) {
    Layout layout = tiny_layout("1f1b", 1, 4, 0, ReduceEvery::Step, 1);
    layout.precision = DType::BFloat16;
    layout.offload = "optimizer";
    layout.offload_piece = 64;
    const Model model = tiny_model(layers, true);
    EXPECT_EQ(memory(compile(step_shape(model, layout, 2)).by_pipeline_rank[0]).staging, 3 * 64 * (4 + 8));
  }
}

TEST(Memory, OfARankFollowsItsOwnReshardPolicy) {
  const Model model = tiny_model(6, true);
  Layout mixed = tiny_layout("1f1b", 4, 5, 3, ReduceEvery::Micro);
  mixed.reshard_of_ranks = {true, false, false, true};
  const Program program = compile(step_shape(model, mixed, 2));
  for (size_t r = 0; r < 4; ++r) {
    Layout all = tiny_layout("1f1b", 4, 5, 3, ReduceEvery::Micro);
    all.reshard_after_forward = mixed.reshard_of_ranks[r];
    const RankMemory found = memory(program.by_pipeline_rank[r]),
                     expected = memory(compile(step_shape(model, all, 2)).by_pipeline_rank[r]);
    all.reshard_after_forward = !all.reshard_after_forward;
    EXPECT_EQ(found.gathered, expected.gathered) << "rank " << r;
    EXPECT_EQ(found.arena, expected.arena) << "rank " << r;
    const auto gathers = [&](const Program& of) {
      return std::ranges::count(of.by_pipeline_rank[r].actions, Kind::Unshard, &Action::kind);
    };
    EXPECT_NE(gathers(program), gathers(compile(step_shape(model, all, 2)))) << "rank " << r;
  }
}

TEST(Memory, OfARankFollowsItsOwnZeroStage) {
  const Model model = tiny_model(6, true);
  const std::vector<int> stages{3, 1, 2, 3};
  for (const ReduceEvery reduce_every : {ReduceEvery::Micro, ReduceEvery::Step}) {
    Layout mixed = tiny_layout("1f1b", 4, 5, 0, reduce_every);
    mixed.zero_of_ranks = stages;
    const Program program = compile(step_shape(model, mixed, 2));
    for (size_t r = 0; r < stages.size(); ++r) {
      const RankMemory found = memory(program.by_pipeline_rank[r]);
      const RankMemory expected =
          memory(compile(step_shape(model, tiny_layout("1f1b", 4, 5, stages[r], reduce_every), 2)).by_pipeline_rank[r]);
      EXPECT_EQ(found.parameters, expected.parameters) << "rank " << r;
      EXPECT_EQ(found.gathered, expected.gathered) << "rank " << r;
      EXPECT_EQ(found.gradients, expected.gradients) << "rank " << r;
      EXPECT_EQ(found.optimizer, expected.optimizer) << "rank " << r;
      EXPECT_EQ(found.arena, expected.arena) << "rank " << r;
    }
  }
}

// Bytes in use at each action, counted without memory(), each buffer in whole units.
uint64_t peak_of_live_bytes(const RankProgram& rank, uint64_t unit) {
  const std::vector<Lifetime> lifetimes = buffer_lifetimes(rank);
  std::vector<int64_t> change(rank.actions.size() + 1, 0);
  int64_t live = 0, peak = 0;
  for (size_t b = 0; b < rank.buffers.size(); ++b) {
    const Buffer& buffer = rank.buffers[b];
    const auto bytes = static_cast<int64_t>((buffer.bytes + unit - 1) / unit * unit);
    if (buffer.stored) continue;
    if (buffer.resident) {
      live += bytes;
    } else {
      change[lifetimes[b].first] += bytes;
      change[lifetimes[b].last + 1] -= bytes;
    }
  }
  for (const int64_t now : change) peak = std::max(peak, live += now);
  return static_cast<uint64_t>(peak);
}

Model small_model(bool tied) {
  ModelConfig config = tiny_model(6, tied).config;
  config.hidden = 64;
  config.heads = config.kv_heads = 4;
  config.ffn = 256;
  config.vocab_size = 500;
  config.seq_len = 128;
  return make_model(config);
}

TEST(PlaceBuffers, LivingBuffersDoNotOverlap) {
  for_each_case(
      [&](const Case& c) {
        if (testing::Test::HasFailure()) return;
        const Program program = compile(c.shape());
        for (const RankProgram& rank : program.by_pipeline_rank) {
          const std::vector<Lifetime> lifetimes = buffer_lifetimes(rank);
          const auto lives_with = [&](size_t a, size_t b) {
            return rank.buffers[a].stored == rank.buffers[b].stored &&
                   (rank.buffers[a].resident || rank.buffers[b].resident ||
                    (lifetimes[a].first <= lifetimes[b].last && lifetimes[b].first <= lifetimes[a].last));
          };
          for (size_t b = 0; b < rank.buffers.size(); ++b)
            for (size_t a = 0; a < b; ++a) {
              const Buffer &first = rank.buffers[a], &second = rank.buffers[b];
              const bool apart =
                  first.offset + first.bytes <= second.offset || second.offset + second.bytes <= first.offset;
              ASSERT_TRUE(apart || !lives_with(a, b)) << c.name << ": " << name_of(first) << ", " << name_of(second);
            }
        }
      },
      13);
}

TEST(PlaceBuffers, TheArenaIsNotMuchLargerThanWhatLivesInIt) {
  double worst = 0;
  std::string where;
  for (const bool tied : {true, false}) {
    const Model model = small_model(tied);
    for_each_case(
        [&](const Case& c) {
          const StepShape shape = step_shape(model, c.layout, 2);
          const Program program = compile(shape);
          for (size_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
            const RankProgram& rank = program.by_pipeline_rank[r];
            uint64_t all = 0;
            const uint64_t unit = rank.store_bytes > 0 ? 4096 : 64;
            for (const Buffer& buffer : rank.buffers)
              if (!buffer.stored) all += (buffer.bytes + unit - 1) / unit * unit;
            EXPECT_LE(rank.arena_bytes, all) << c.name;
            const double ratio = static_cast<double>(rank.arena_bytes) /
                                 static_cast<double>(peak_of_live_bytes(rank, rank.store_bytes > 0 ? unit : 1));
            EXPECT_LE(ratio, 1.2) << c.name << ", rank " << r;
            if (ratio > worst) {
              worst = ratio;
              where = fmt::format("{}, rank {}", c.name, r);
            }
          }
        },
        17);
  }
  std::printf("largest arena: %.3f of its peak, %s\n", worst, where.c_str());
}

int most_saved_at_once(const RankProgram& rank, uint16_t block) {
  const std::vector<Lifetime> lifetimes = buffer_lifetimes(rank);
  int most = 0;
  for (uint32_t i = 0; i < rank.actions.size(); ++i) {
    int live = 0;
    for (size_t b = 0; b < rank.buffers.size(); ++b)
      if (rank.buffers[b].role == Role::Saved && rank.buffers[b].index == block && lifetimes[b].first <= i &&
          i <= lifetimes[b].last)
        ++live;
    most = std::max(most, live);
  }
  return most;
}

Program of(const Model& model, const char* schedule, int64_t micro_batches, int zero = 0) {
  Layout layout = tiny_layout(schedule, 4, micro_batches, zero, ReduceEvery::Step);
  layout.stages = {2, 2, 2, 2};
  return compile(step_shape(model, layout, 2));
}

// Activations that are kept until the end of a step would show here.
TEST(Memory, OneForwardOneBackwardHoldsNoMoreThanItsDepthWhateverTheMicroBatches) {
  const Model model = small_model(true);
  for (const int64_t micro_batches : {1, 2, 3, 4, 8, 64}) {
    const Program program = of(model, "1f1b", micro_batches);
    for (uint16_t s = 0; s < 4; ++s) {
      const auto layer = static_cast<uint16_t>(s == 0 ? 1 : 2 * s);  // a transformer layer of the stage
      EXPECT_EQ(most_saved_at_once(program.by_pipeline_rank[s], layer), std::min<int64_t>(micro_batches, 4 - s))
          << "m " << micro_batches << ", stage " << s;
    }
  }
  const Program four = of(model, "1f1b", 4), many = of(model, "1f1b", 64);
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(memory(four.by_pipeline_rank[s]).activations, memory(many.by_pipeline_rank[s]).activations) << s;
  }
}

TEST(Memory, GpipeGrowsLinearlyInMicroBatches) {
  const Model model = small_model(true);
  for (size_t s = 0; s < 4; ++s) {
    const auto peak = [&](int64_t m) { return memory(of(model, "gpipe", m).by_pipeline_rank[s]).activations; };
    const uint64_t at_4 = peak(4), at_8 = peak(8), at_12 = peak(12);
    EXPECT_GT(at_8, at_4) << s;
    EXPECT_EQ(at_8 - at_4, at_12 - at_8) << s;
  }
}

TEST(Memory, GatheredCopiesOfStageThreeAreOfOneBlockNotOfTheStage) {
  const Model model = small_model(false);
  const auto gathered = [&](bool reshard) {
    const Layout layout = tiny_layout("1f1b", 1, 2, 3, ReduceEvery::Micro, 2, reshard);
    return memory(compile(step_shape(model, layout, 2)).by_pipeline_rank[0]).gathered;
  };
  uint64_t all = 0, largest = 0;
  for (const ParameterGroup& group : model.groups) {
    const uint64_t bytes = 4 * shards(group.elements, 2).padded_elements();
    all += bytes;
    largest = std::max(largest, bytes);
  }
  EXPECT_EQ(gathered(false), all);
  EXPECT_EQ(gathered(true), largest);
}

}  // namespace
}  // namespace shardpipe
