#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "model/shape/model.h"
#include "report/table.h"
#include "train/run.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// gpt2-tiny sees 20 tokens for each of its parameters.
RunConfig enough() {
  RunConfig config;
  config.model = model_preset("gpt2-tiny");
  config.layout.global_batch_size = 8;
  const auto parameters = static_cast<int64_t>(make_model(config.model).parameters());
  config.steps = 20 * parameters / (8 * config.model.seq_len) + 1;
  return config;
}
int64_t tokens_seen(const RunConfig& config) {
  return config.steps * config.layout.global_batch_size * config.model.seq_len;
}

TEST(Warnings, AreNoneForARunThatHasEnoughOfAll) {
  const RunConfig config = enough();
  EXPECT_THAT(warnings_of(config, tokens_seen(config), {.arena = 1 << 20}), IsEmpty());
  EXPECT_THAT(warnings_of(config, -1, {.arena = 1 << 20}), IsEmpty()) << "an unknown text is not a short one";
}

TEST(Warnings, SayThatBf16NeedsNoScaleWhereFp16IsAskedFor) {
  RunConfig config = enough();
  config.layout.precision = DType::Float16;
  EXPECT_THAT(warnings_of(config, tokens_seen(config), {}),
              ElementsAre(AllOf(HasSubstr("--precision fp16"), HasSubstr("65504"), HasSubstr("--loss-scale 65536"),
                                HasSubstr("--precision bf16"))));
  config.layout.precision = DType::BFloat16;
  EXPECT_THAT(warnings_of(config, tokens_seen(config), {}), IsEmpty());
}

TEST(Warnings, SayThatThereIsNothingToOffload) {
  RunConfig config = enough();
  config.layout.offload = "optimizer";
  config.optimizer.optimizer = OptimizerKind::Sgd;
  EXPECT_THAT(warnings_of(config, tokens_seen(config), {.store = 0}),
              ElementsAre(AllOf(HasSubstr("--offload optimizer finds nothing"), HasSubstr("SGD in fp32"))));
  EXPECT_THAT(warnings_of(config, tokens_seen(config), {.store = 1}), IsEmpty());
}

// What host memory keeps counts, what a disk keeps does not.
TEST(Warnings, CountWhatIsOffloadedToTheHost) {
  RunConfig config = enough();
  config.layout.offload = "optimizer";
  const HeldBytes held{.arena = 1 << 20, .activations = 1 << 19, .store = uint64_t{1} << 60};
  EXPECT_THAT(warnings_of(config, tokens_seen(config), held),
              ElementsAre(AllOf(HasSubstr("all ranks together hold"), HasSubstr("this machine has"))));
  config.offload_to = "nvme:/scratch";
  EXPECT_THAT(warnings_of(config, tokens_seen(config), held), IsEmpty());
}

TEST(Warnings, SayHowFewTokensAParameterSees) {
  RunConfig config = enough();
  config.steps = config.steps / 20;  // about one token
  const std::string parameters = human_count(static_cast<double>(make_model(config.model).parameters()));
  EXPECT_THAT(warnings_of(config, tokens_seen(config), {}),
              ElementsAre(AllOf(HasSubstr(human_count(static_cast<double>(tokens_seen(config)))),
                                HasSubstr("1 for each of " + parameters), HasSubstr("--steps"))));
  config.steps = enough().steps / 9;  // above two
  EXPECT_THAT(warnings_of(config, tokens_seen(config), {}), IsEmpty());
}

TEST(Warnings, SayHowOftenTheTextIsRead) {
  const RunConfig config = enough();
  EXPECT_THAT(warnings_of(config, tokens_seen(config) / 8, {}),
              ElementsAre(AllOf(HasSubstr("8.0 times"), HasSubstr("--data"))));
  EXPECT_THAT(warnings_of(config, tokens_seen(config) / 4 + 1, {}), IsEmpty());
}

TEST(Warnings, SayWhatTheMachineLacks) {
  const RunConfig config = enough();
  constexpr uint64_t exbibyte = uint64_t{1} << 60;
  EXPECT_THAT(
      warnings_of(config, -1, {.arena = exbibyte, .activations = exbibyte / 4}),
      ElementsAre(AllOf(HasSubstr("1.00 EiB"), HasSubstr("256 PiB are activations"), HasSubstr("--micro-batch-size"))));
}

TEST(Warnings, AreToldTogetherEachInOneLine) {
  RunConfig config = enough();
  config.steps = 100;
  const std::vector<std::string> warnings = warnings_of(config, 10, {.arena = std::numeric_limits<uint64_t>::max()});
  EXPECT_EQ(warnings.size(), 3u);
  for (const std::string& warning : warnings) EXPECT_EQ(warning.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace shardpipe
