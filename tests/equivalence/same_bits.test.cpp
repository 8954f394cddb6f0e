// A layout never changes a bit: for each data-parallel size, number of micro-batches and cadence, one digest over
// pipeline depths, ZeRO stages and schedules.
#include <gtest/gtest.h>

#include "equivalence/tiny.h"

namespace shardpipe {
namespace {

struct Family_ {
  const char* name;
  ModelConfig model;
};

class SameBits : public testing::TestWithParam<std::tuple<int, int64_t>> {};

TEST_P(SameBits, AcrossLayouts) {
  const auto [family, dp] = GetParam();
  const ModelConfig model = family == 0 ? tiny_gpt2() : tiny_llama();
  for (const ReduceEvery cadence : {ReduceEvery::Step, ReduceEvery::Micro})
    for (const int64_t m : {1, 2, 3, 5, 8}) {
      const TrainResult plain = run_tiny(tiny_run(model, tiny_layout(1, dp, 0, m, cadence)));
      for (const int64_t pp : {1, 2, 4})
        for (const int zero : {0, 1, 2, 3})
          for (const char* schedule : {"gpipe", "1f1b"}) {
            const TrainResult result = run_tiny(tiny_run(model, tiny_layout(pp, dp, zero, m, cadence, schedule)));
            EXPECT_EQ(result.params_digest, plain.params_digest)
                << model.name << " pp " << pp << " dp " << dp << " zero " << zero << " m " << m << " " << schedule;
            EXPECT_EQ(result.last.scalars.loss, plain.last.scalars.loss);
            EXPECT_EQ(result.peak_bytes, result.planned_peak_bytes);
          }
    }
}
INSTANTIATE_TEST_SUITE_P(Layouts, SameBits, testing::Combine(testing::Values(0, 1), testing::Values(1, 2, 4)));

}  // namespace
}  // namespace shardpipe
