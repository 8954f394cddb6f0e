// What flags and files come to: defaults that depend on other flags, which source wins, and parse(print(x)) = x.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "base/error.h"
#include "cli/options.h"
#include "cli/settings.h"
#include "schedules/schedule.h"

namespace shardpipe::cli {
namespace {

RunConfig from_flags(const std::vector<std::string>& flags, std::string_view toml = "") {
  return resolve(read_config_text(toml, "run.toml"), read_arguments(Command::Train, flags).settings);
}

TEST(Resolve, PresetGivesTheSizesThatAreNotGiven) {
  EXPECT_EQ(from_flags({"--model", "llama-8b"}).model, model_preset("llama-8b"));
  const RunConfig config = from_flags({"--model", "gpt2-tiny", "--layers", "7", "--seq-len=32", "--untied"});
  ModelConfig expected = model_preset("gpt2-tiny");
  expected.layers = 7;
  expected.seq_len = 32;
  expected.tied_embeddings = false;
  EXPECT_EQ(config.model, expected);
}

TEST(Resolve, SizesOfGpt2FollowFromHiddenAndHeadsUnlessGiven) {
  const RunConfig config = from_flags({"--model", "gpt2-tiny", "--hidden", "96", "--heads", "6"});
  EXPECT_EQ(config.model.ffn, 384);
  EXPECT_EQ(config.model.kv_heads, 6);
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny", "--hidden", "96", "--ffn", "100"}).model.ffn, 100);
}

TEST(Resolve, SizesOfLlamaDoNotFollow) {
  EXPECT_EQ(from_flags({"--model", "llama-tiny", "--heads", "8"}).model.kv_heads, model_preset("llama-tiny").kv_heads);
  EXPECT_THROW(from_flags({"--model", "llama-tiny", "--hidden", "128"}), InputError);
}

TEST(Resolve, CadenceFollowsTheZeroStageUnlessGiven) {
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny", "--zero", "1"}).layout.reduce_every, ReduceEvery::Step);
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny", "--zero", "2"}).layout.reduce_every, ReduceEvery::Micro);
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny", "--zero", "3", "--reduce-every", "step"}).layout.reduce_every,
            ReduceEvery::Step);
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny", "--reduce-every", "micro"}).layout.reduce_every, ReduceEvery::Micro);
}

TEST(Resolve, GlobalBatchDefaultsToAMicroBatchAStage) {
  const RunConfig config = from_flags({"--model", "gpt2-tiny", "--pp", "3", "--dp", "2", "--micro-batch-size", "5"});
  EXPECT_EQ(config.layout.global_batch_size, 30);
  EXPECT_EQ(config.layout.micro_batches(), 3);
}

// So that the config.toml of a run with balanced stages works with another --pp.
TEST(Resolve, StagesStayAutoUnlessGiven) {
  const RunConfig balanced = from_flags({"--model", "gpt2-tiny", "--pp", "2"});
  EXPECT_THAT(balanced.layout.stages, testing::IsEmpty());
  EXPECT_THAT(print_config(balanced), testing::HasSubstr("\nstages = \"auto\"\n"));
  EXPECT_EQ(from_flags({"--pp", "4"}, print_config(balanced)).layout.pp, 4);
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny", "--pp", "2", "--stages", "1,5"}).layout.stages,
            (std::vector<int64_t>{1, 5}));
  EXPECT_THAT(from_flags({"--model", "gpt2-tiny", "--pp", "2", "--stages", "auto"}, "stages = [1, 5]").layout.stages,
              testing::IsEmpty());
}

TEST(Resolve, MinLrIsATenthOfLrUnlessGiven) {
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny", "--lr", "0.5"}).optimizer.min_lr, 0.05);
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny", "--lr", "3e-4"}).optimizer.min_lr, 3e-5);  // 3e-4 / 10 is below it
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny", "--lr", "0.5", "--min-lr", "0"}).optimizer.min_lr, 0);
}

TEST(Resolve, DataMayBeRepeatedAndListed) {
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny", "--data", "a,b", "--data=c"}).data.data,
            (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny"}, "data = \"a,b\"").data.data, (std::vector<std::string>{"a,b"}));
  EXPECT_EQ(from_flags({"--model", "gpt2-tiny"}, "data = [\"a\", \"b\"]").data.data,
            (std::vector<std::string>{"a", "b"}));
}

TEST(Resolve, FlagsWinOverTheFile) {
  const RunConfig config =
      from_flags({"--pp", "3", "--no-trace"}, "model = \"gpt2-tiny\"\npp = 2\ndp = 2\ntrace = true\nout = \"x\"\n");
  EXPECT_EQ(config.layout.pp, 3);
  EXPECT_EQ(config.layout.dp, 2);
  EXPECT_FALSE(config.trace);
}

TEST(Resolve, KeysTakeDashesAndUnderscoresAlike) {
  EXPECT_EQ(from_flags({}, "model = \"gpt2-tiny\"\nmicro_batch_size = 2\nseq-len = 16").layout.micro_batch_size, 2);
  EXPECT_EQ(from_flags({}, "model = \"gpt2-tiny\"\nmicro-batch-size = 2\nseq_len = 16").model.seq_len, 16);
}

TEST(Resolve, WholeNumberInTheFileIsANumberToo) {
  EXPECT_EQ(from_flags({}, "model = \"gpt2-tiny\"\nweight-decay = 0\nlr = 1").optimizer.weight_decay, 0);
}

TEST(Options, NamesAreUniqueAndEachRowReadsWhatItWrites) {
  std::set<std::string> names;
  for (const Option& option : options()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_TRUE(option.opposite.empty() || names.insert(option.opposite).second) << option.opposite;
    RunConfig config;
    config.model = model_preset("llama-tiny");
    const Value before = option.get(config);
    Value after = before;
    if (auto* flag = std::get_if<bool>(&after)) *flag = !*flag;
    if (auto* number = std::get_if<int64_t>(&after)) *number += 1;
    if (auto* number = std::get_if<double>(&after)) *number = *number / 2 + 0.125;
    if (auto* text = std::get_if<std::string>(&after)) *text = option.choices.empty() ? "else" : option.choices.back();
    if (auto* list = std::get_if<std::vector<int64_t>>(&after)) list->push_back(3);
    if (auto* list = std::get_if<std::vector<std::string>>(&after)) list->push_back("file");
    option.set(config, after);
    EXPECT_EQ(option.get(config), after) << option.name;
  }
}

// A right configuration with every field drawn; text fields hold what TOML must escape.
RunConfig random_config(std::mt19937_64& random) {
  const auto from = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  const auto real = [&](double most) { return std::uniform_real_distribution<double>(0, most)(random); };
  const auto text = [&] {
    const std::vector<std::string> pieces{"a", " ",  "\"", "\\", "\n", "\t", "\r", "\x01", "\x7F",
                                          "ü", "日", "😀",  "#",  "'",  "=",  ",",  "[",    "-"};
    std::string result = "f";
    for (int64_t i = from(0, 12); i > 0; --i) result += pieces[from(0, std::ssize(pieces) - 1)];
    return result;
  };
  RunConfig config;
  const std::vector<std::string> presets = model_presets();
  config.model = model_preset(presets[from(0, std::ssize(presets) - 1)]);
  config.model.layers = from(1, 40);
  config.model.heads = from(1, 8);
  config.model.hidden = config.model.heads * 2 * from(1, 100);
  config.model.kv_heads = config.model.family == Family::Gpt2 || from(0, 1) == 1 ? config.model.heads : 1;
  config.model.ffn = from(1, 5000);
  config.model.vocab_size = from(2, 100'000);
  config.model.seq_len = from(1, 4096);
  config.model.tied_embeddings = from(0, 1) == 1;
  Layout& layout = config.layout;
  layout.pp = from(1, std::min<int64_t>(config.model.layers + 2, 16));
  layout.dp = from(1, 16);
  layout.zero = static_cast<int>(from(0, 3));
  if (from(0, 1) == 1) {
    layout.zero = 0;
    for (int64_t rank = 0; rank < layout.pp; ++rank) layout.zero_of_ranks.push_back(static_cast<int>(from(1, 3)));
  }
  if (layout.highest_zero() > 0 && layout.dp % 2 == 0) layout.replicate = layout.dp / 2;
  layout.precision = static_cast<DType>(from(0, 2));
  layout.reduce_dtype = static_cast<DType>(from(0, 1));
  layout.reproducible = layout.reduce_dtype == DType::Float32 && from(0, 1) == 1;
  layout.recompute = std::vector<std::string>{"none", "full", "selective", "every:1", "blocks:0,1-2"}[from(0, 4)];
  layout.schedule = schedule_names()[from(0, std::ssize(schedule_names()) - 1)];
  layout.micro_batch_size = from(1, 9);
  layout.global_batch_size = layout.micro_batch_size * layout.dp * from(1, 100);
  layout.reduce_every = from(0, 1) == 1 ? ReduceEvery::Micro : ReduceEvery::Step;
  layout.reshard_after_forward = from(0, 1) == 1;
  if (layout.pp > 1 && from(0, 1) == 1) {
    layout.reshard_after_forward = true;
    for (int64_t rank = 0; rank < layout.pp; ++rank) layout.reshard_of_ranks.push_back(from(0, 1) == 1);
  }
  layout.chunks_per_rank = find_generator(layout.schedule)->usual_chunks;
  config.model.layers = std::max(config.model.layers, layout.chunks());
  if (from(0, 1) == 1) {
    layout.stages.assign(layout.chunks(), 1);
    for (int64_t left = config.model.layers + 2 - layout.chunks(); left > 0; --left)
      layout.stages[from(0, layout.chunks() - 1)] += 1;
  }
  OptimizerConfig& optimizer = config.optimizer;
  optimizer.optimizer = static_cast<OptimizerKind>(from(0, 1));
  optimizer.lr = real(1) * std::pow(10.0, -static_cast<double>(from(0, 12)));
  optimizer.min_lr = real(optimizer.lr);
  optimizer.lr_schedule = static_cast<LrSchedule>(from(0, 2));
  optimizer.beta1 = real(0.999);
  optimizer.beta2 = from(0, 1) == 1 ? 0 : real(0.999);
  optimizer.epsilon = 1e-12 + real(1e-5);
  optimizer.weight_decay = from(0, 1) == 1 ? 0 : real(1e6);
  optimizer.grad_clip = real(2);
  if (layout.precision == DType::Float16)
    config.loss_scale = {.initial = 1 + real(1e6),
                         .growth = 1 + real(7),
                         .backoff = 0.1 + real(0.8),
                         .minimum = 0.01 + real(0.9),
                         .growth_interval = from(1, 5000),
                         .hysteresis = from(1, 9)};
  config.on_nan = static_cast<OnNan>(from(0, 1));
  config.memory_limit = std::vector<std::string>{"none", "1", "2.5GB", "8GiB"}[from(0, 3)];
  for (int64_t i = from(0, 3); i > 0; --i) config.data.data.push_back(text());
  config.data.data_format = static_cast<TokenFormat>(from(0, 2));
  config.data.val_fraction = 1e-6 + real(0.9);
  config.steps = from(1, 1'000'000);
  optimizer.warmup_steps = from(0, config.steps);
  config.seed = static_cast<uint64_t>(from(0, std::numeric_limits<int64_t>::max()));
  config.eval_every = from(0, 100);
  config.eval_sequences = from(1, 1000);
  if (from(0, 1) == 1) config.out = text();
  config.trace = !config.out.empty() && from(0, 1) == 1;
  return config;
}

TEST(PrintConfig, ParsesBackToTheSameConfiguration) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const RunConfig config = random_config(random);
    const std::string text = print_config(config);
    const Settings settings = read_config_text(text, "run.toml");
    ASSERT_THAT(settings.problems, testing::IsEmpty()) << "seed " << seed << "\n" << text;
    ASSERT_EQ(settings.given.size(), options().size()) << "seed " << seed;
    const RunConfig again = resolve(settings, {});
    ASSERT_EQ(print_config(again), text) << "seed " << seed;
    ASSERT_TRUE(again == config) << "seed " << seed << "\n" << text;
  }
}

}  // namespace
}  // namespace shardpipe::cli
