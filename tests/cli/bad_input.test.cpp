// What a person can write wrong, as a table: the real binary must end with exit code 2, name the flag or file, what was
// found and what is allowed, a line a mistake, and write nothing.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_binary.h"

namespace shardpipe {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

using Words = std::vector<std::string>;

struct BadInput {
  std::string name;
  Words arguments;           // behind `train --model gpt2-tiny --data corpus.txt`, unless `bare`
  std::vector<Words> lines;  // a list for each line of stderr, in order: the texts that it holds
  std::string toml = {};     // content of run.toml, where there is one
  bool bare = false;         // the arguments are all there is
};

void PrintTo(const BadInput& bad_input, std::ostream* out) { *out << bad_input.name; }

Words command_line(const BadInput& bad_input) {
  Words words;
  if (!bad_input.bare) words = {"train", "--model", "gpt2-tiny", "--data", "corpus.txt"};
  words.insert(words.end(), bad_input.arguments.begin(), bad_input.arguments.end());
  return words;
}

class BadInputs : public testing::TestWithParam<BadInput> {};

TEST_P(BadInputs, EndInOneClearLineEachAndWriteNothing) {
  const BadInput& bad_input = GetParam();
  const TemporaryFolder folder;
  folder.write("corpus.txt", std::string(100'000, 'a'));
  if (!bad_input.toml.empty()) folder.write("run.toml", bad_input.toml);
  const auto before = everything_in(folder.path());

  const Outcome outcome = run_binary(command_line(bad_input), folder.path());

  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.standard_output, "");
  EXPECT_EQ(everything_in(folder.path()), before);
  const Words lines = outcome.error_lines();
  EXPECT_THAT(lines, Each(StartsWith("shardpipe: ")));
  ASSERT_EQ(lines.size(), bad_input.lines.size()) << outcome.standard_error;
  for (size_t i = 0; i < lines.size(); ++i)
    for (const std::string& text : bad_input.lines[i]) EXPECT_THAT(lines[i], HasSubstr(text));
}

std::string name_of(const testing::TestParamInfo<BadInput>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Names, BadInputs,
    testing::Values(
        BadInput{
            "UnknownSubcommand", {"trian"}, {{"'trian'", "allowed: train, verify", "did you mean 'train'"}}, {}, true},
        BadInput{
            "UnknownFlag", {"--gradient_acumulation_steps", "4"}, {{"--gradient_acumulation_steps", "unknown flag"}}},
        BadInput{"MisspeltFlag", {"--zreo", "3"}, {{"--zreo", "unknown flag", "did you mean '--zero'"}}},
        BadInput{"MisspeltFlagWithEquals", {"--zreo=3"}, {{"--zreo", "unknown flag", "did you mean '--zero'"}}},
        BadInput{"UnderscoresInAFlag",
                 {"--micro_batch_size", "2"},
                 {{"--micro_batch_size", "did you mean '--micro-batch-size'"}}},
        BadInput{
            "AbbreviatedFlag", {"--micro", "2"}, {{"--micro:", "unknown flag", "did you mean '--micro-batch-size'"}}},
        BadInput{"SingleDash", {"-pp", "2"}, {{"-pp", "unknown flag", "did you mean '--pp'"}}},
        BadInput{"OnlyDashes", {"--"}, {{"--", "unknown flag"}}},
        BadInput{"StrayWord", {"2"}, {{"'2'", "no flag takes", "allowed: flags"}}},
        BadInput{"FlagOfAnotherCommand", {"verify", "--out", "x"}, {{"--out", "unknown flag of verify"}}, {}, true},
        BadInput{"FlagTwice", {"--pp", "2", "--pp", "2"}, {{"--pp", "found twice", "allowed: once"}}},
        BadInput{
            "TiedAndUntied", {"--tied", "--untied"}, {{"--untied", "found beside --tied", "allowed: one of them"}}},
        BadInput{"PrintAndDryRun",
                 {"--print-config", "--dry-run"},
                 {{"--print-config", "--dry-run", "allowed: one of them"}}},
        BadInput{"MissingModel",
                 {"train", "--data", "corpus.txt"},
                 {{"--model: found none", "gpt2-tiny", "llama-70b"}},
                 {},
                 true},
        BadInput{"MissingData",
                 {"train", "--model", "gpt2-tiny"},
                 {{"--data: found none", "allowed: one or more files"}},
                 {},
                 true},
        BadInput{"UnknownPreset",
                 {"train", "--data", "corpus.txt", "--model", "gpt2-124"},
                 {{"--model: found 'gpt2-124'", "allowed: gpt2-tiny", "did you mean 'gpt2-124m'"}},
                 {},
                 true},
        BadInput{"UnknownSchedule",
                 {"--schedule", "1fb1"},
                 {{"--schedule: found '1fb1'", "allowed: gpipe, 1f1b", "did you mean '1f1b'"}}},
        BadInput{"UnknownOptimizer",
                 {"--optimizer", "adam"},
                 {{"--optimizer: found 'adam'", "allowed: adamw, sgd", "did you mean 'adamw'"}}},
        BadInput{"UnknownDataFormat",
                 {"--data-format", "uint8"},
                 {{"--data-format: found 'uint8'", "allowed: text, uint16, uint32"}}},
        BadInput{
            "PrecisionNotThere", {"--precision", "fp8"}, {{"--precision: found 'fp8'", "allowed: fp32, bf16, fp16"}}},
        BadInput{"OnNanNotThere", {"--on-nan", "ignore"}, {{"--on-nan: found 'ignore'", "allowed: stop, continue"}}},
        BadInput{"RecomputeNotThere",
                 {"--recompute", "all"},
                 {{"--recompute: found 'all'", "allowed: none, full, selective, every:N"}}},
        BadInput{"OffloadNotThere",
                 {"--offload", "optimizer,gradients"},
                 {{"--offload: found 'gradients'", "allowed: none, or some of optimizer, params, activations"}}},
        BadInput{"NoneAmongWhatIsOffloaded", {"--offload", "params,none"}, {{"--offload: found 'none'", "allowed:"}}},
        BadInput{"OffloadToNowhere",
                 {"--offload", "params", "--offload-to", "nvme:"},
                 {{"--offload-to: found 'nvme:'", "allowed: host, or nvme:DIR"}}},
        BadInput{"OffloadToSomethingElse",
                 {"--offload", "params", "--offload-to", "disk"},
                 {{"--offload-to: found 'disk'", "allowed: host, or nvme:DIR"}}},
        BadInput{"NothingToOffloadToAFolder",
                 {"--offload-to", "nvme:."},
                 {{"--offload-to nvme:.", "without --offload", "allowed: with --offload optimizer"}}},
        BadInput{"FilesForBlocksThatOnlyTakeTime",
                 {"train", "--model", "synthetic", "--offload", "params", "--offload-to", "nvme:."},
                 {{"--offload-to nvme:.: found with --model synthetic", "allowed: --offload-to host"}},
                 {},
                 true},
        BadInput{"OffloadInNoPieces", {"--offload-piece", "0"}, {{"--offload-piece: found 0", "allowed: 1 or more"}}}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Numbers, BadInputs,
    testing::Values(
        BadInput{"NoValueAtTheEnd", {"--pp"}, {{"--pp: found no value", "allowed: a whole number"}}},
        BadInput{"NoValueBeforeAFlag", {"--pp", "--dp", "2"}, {{"--pp: found no value", "allowed: a whole number"}}},
        BadInput{"EmptyValue", {"--pp="}, {{"--pp: found no value", "allowed: a whole number"}}},
        BadInput{"WordForANumber", {"--pp", "two"}, {{"--pp: found 'two'", "allowed: a whole number"}}},
        BadInput{"JunkBehindANumber", {"--pp", "2x"}, {{"--pp: found '2x'", "allowed: a whole number"}}},
        BadInput{"SpaceBeforeANumber", {"--pp", " 2"}, {{"--pp: found ' 2'", "allowed: a whole number"}}},
        BadInput{"FractionForAWholeNumber", {"--steps", "1.5"}, {{"--steps: found '1.5'", "allowed: a whole number"}}},
        BadInput{"ExponentForAWholeNumber", {"--steps=1e3"}, {{"--steps: found '1e3'", "allowed: a whole number"}}},
        BadInput{"HexadecimalNumber", {"--steps", "0x10"}, {{"--steps: found '0x10'", "allowed: a whole number"}}},
        BadInput{"WholeNumberBeyond64Bits",
                 {"--steps", "99999999999999999999"},
                 {{"--steps: found 99999999999999999999", "out of range", "allowed: a whole number"}}},
        BadInput{"LargestWholeNumber",
                 {"--pp", "9223372036854775807"},
                 {{"--pp: found 9223372036854775807", "allowed: 1 to 6"}}},
        BadInput{"ZeroRanks", {"--pp", "0"}, {{"--pp: found 0", "allowed: 1 to 6"}}},
        BadInput{"NegativeRanks", {"--dp", "-2"}, {{"--dp: found -2", "allowed: 1 to 4096"}}},
        BadInput{"TooManyRanks",
                 {"--pp", "6", "--dp", "1000"},
                 {{"--pp 6 × --dp 1000: found 6000 ranks", "allowed: 1 to 4096", "--dp 682"}}},
        BadInput{"ZeroSteps", {"--steps", "0"}, {{"--steps: found 0", "allowed: 1 to"}}},
        BadInput{"NegativeSeed", {"--seed", "-1"}, {{"--seed: found -1", "allowed: 0 to"}}},
        BadInput{"ZeroMicroBatch", {"--micro-batch-size", "0"}, {{"--micro-batch-size: found 0", "allowed: 1 to"}}},
        BadInput{
            "NegativeGlobalBatch", {"--global-batch-size", "-8"}, {{"--global-batch-size: found -8", "allowed: 1 to"}}},
        BadInput{"ZeroStageFour", {"--zero", "4"}, {{"--zero: found 4", "allowed: 0 to 3"}}},
        BadInput{"ZeroStageBeyondInt", {"--zero", "4294967297"}, {{"--zero: found", "allowed: 0 to 3"}}},
        BadInput{"ZeroLayers", {"--layers", "0"}, {{"--layers: found 0", "allowed: 1 to 65000"}}},
        BadInput{
            "HugeLayers", {"--layers", "1000000000000"}, {{"--layers: found 1000000000000", "allowed: 1 to 65000"}}},
        BadInput{"NegativeVocabulary", {"--vocab-size", "-1"}, {{"--vocab-size: found -1", "allowed: 1 to"}}},
        BadInput{"LearningRateNan", {"--lr", "nan"}, {{"--lr: found nan", "allowed: a finite number"}}},
        BadInput{"LearningRateMinusNan", {"--lr=-nan"}, {{"--lr: found -nan", "allowed: a finite number"}}},
        BadInput{"LearningRateInfinite", {"--lr", "inf"}, {{"--lr: found inf", "allowed: a finite number"}}},
        BadInput{"LearningRateBeyondDouble",
                 {"--lr", "1e999"},
                 {{"--lr: found 1e999", "out of range", "allowed: a finite number"}}},
        BadInput{"LearningRateBeyondFloat", {"--lr", "1e100"}, {{"--lr: found 1e+100", "allowed: a number from 0 to"}}},
        BadInput{"LearningRateNegative", {"--lr", "-1e-3"}, {{"--lr: found -0.001", "allowed: a number from 0"}}},
        BadInput{"DropoutOfAll", {"--dropout", "1"}, {{"--dropout: found 1", "allowed: a number from 0 to below 1"}}},
        BadInput{"DropoutThatRoundsToAll",
                 {"--dropout", "0.99999999"},
                 {{"--dropout: found 0.99999999", "allowed: a number from 0 to below 1"}}},
        BadInput{"DropoutNegative", {"--dropout", "-0.1"}, {{"--dropout: found -0.1", "allowed: a number from 0"}}},
        BadInput{"DropoutNan", {"--dropout", "nan"}, {{"--dropout: found nan", "allowed: a finite number"}}},
        BadInput{"DropoutOfLlama",
                 {"train", "--data", "corpus.txt", "--model", "llama-tiny", "--dropout", "0.1"},
                 {{"--dropout: found 0.1", "allowed: 0 for llama-tiny", "only GPT-2"}},
                 "",
                 true},
        BadInput{"CommaForAPoint", {"--lr", "0,1"}, {{"--lr: found '0,1'", "allowed: a finite number"}}},
        BadInput{"EpsilonZero", {"--epsilon", "0"}, {{"--epsilon: found 0", "allowed: a number from"}}},
        BadInput{"BetaOne", {"--beta2", "1"}, {{"--beta2: found 1", "allowed: a number from 0 to below 1"}}},
        BadInput{"ValFractionOne",
                 {"--val-fraction", "1"},
                 {{"--val-fraction: found 1", "allowed: a number from 0 to below 1"}}},
        BadInput{"ClipNegative", {"--grad-clip", "-1"}, {{"--grad-clip: found -1", "allowed: a number from 0"}}},
        BadInput{"SwitchWithAValue",
                 {"--trace=yes"},
                 {{"--trace: found the value 'yes'", "allowed: --trace or --no-trace"}}},
        BadInput{"YesNoWithATrue",
                 {"--reshard-after-forward", "true"},
                 {{"--reshard-after-forward: found 'true'", "allowed: yes, no"}}},
        BadInput{"YesNoWithAHole",
                 {"--reshard-after-forward", "yes,,no"},
                 {{"--reshard-after-forward: found ''", "allowed: yes, no"}}},
        BadInput{"YesNosForOtherRanks",
                 {"--reshard-after-forward", "yes,no,no"},
                 {{"--reshard-after-forward: found 3 answers", "as --pp says"}}}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Contradictions, BadInputs,
    testing::Values(
        BadInput{"BatchThatDoesNotDivide",
                 {"--micro-batch-size", "4", "--dp", "2", "--global-batch-size", "30"},
                 {{"--global-batch-size 30 is not --micro-batch-size 4 × --dp 2 × an integer: 24 or 32 would be"}}},
        BadInput{"MoreStagesThanBlocks",
                 {"--pp", "7"},
                 {{"--pp: found 7 stages", "6 blocks (embedding + 4 layers + head)", "allowed: 1 to 6"}}},
        BadInput{
            "StagesAgainstPp", {"--pp", "2", "--stages", "2,2,2"}, {{"--stages 2,2,2: found 3 stages", "allowed: 2"}}},
        BadInput{
            "StagesAgainstBlocks", {"--pp", "2", "--stages", "2,3"}, {{"--stages 2,3: found 5 blocks", "allowed: 6"}}},
        BadInput{"EmptyStage",
                 {"--pp", "2", "--stages", "0,6"},
                 {{"--stages 0,6: found a stage of 0 blocks", "allowed: 1 or more"}}},
        BadInput{
            "MemoryLimitThatIsNone",
            {"--memory-limit", "8 gigabytes"},
            {{"--memory-limit: found '8 gigabytes'", "allowed: none, or bytes such as 2500000000, 2.5GB or 8GiB"}}},
        BadInput{"LossScaleWithoutFp16",
                 {"--loss-scale", "1024"},
                 {{"--loss-scale, --loss-scale-…: found with --precision fp32", "allowed: with --precision fp16"}}},
        BadInput{"LossScaleBelowItsMinimum",
                 {"--precision", "fp16", "--loss-scale", "0.5"},
                 {{"--loss-scale: found 0.5", "allowed: --loss-scale-minimum 1 to"}}},
        BadInput{"LossScaleMinimumOfNothing",
                 {"--precision", "fp16", "--loss-scale-minimum", "0"},
                 {{"--loss-scale-minimum: found 0", "allowed: above 0"}}},
        BadInput{"LossScaleThatGrowsDownwards",
                 {"--precision", "fp16", "--loss-scale-growth", "0.5"},
                 {{"--loss-scale-growth: found 0.5", "allowed: 1 to 1024"}}},
        BadInput{"LossScaleThatDoesNotFall",
                 {"--precision", "fp16", "--loss-scale-backoff", "1"},
                 {{"--loss-scale-backoff: found 1", "allowed: above 0, below 1"}}},
        BadInput{"LossScaleIntervalOfNothing",
                 {"--precision", "fp16", "--loss-scale-interval", "0"},
                 {{"--loss-scale-interval: found 0", "allowed: 1 to"}}},
        BadInput{"LossScaleHysteresisOfNothing",
                 {"--precision", "fp16", "--loss-scale-hysteresis", "0"},
                 {{"--loss-scale-hysteresis: found 0", "allowed: 1 to"}}},
        BadInput{"BlockCostOfARealModel",
                 {"--block-cost", "1,1,1"},
                 {{"--block-cost 1,1,1", "allowed: with --model synthetic"}}},
        BadInput{
            "BlockCostOfTwoNumbers",
            {"--block-cost", "1,2"},
            {{"--block-cost 1,2: found with --model gpt2-tiny"}, {"--block-cost 1,2: found 2 numbers", "allowed: 3"}}},
        BadInput{"BlockCostOfNothing",
                 {"--block-cost", "1,0,1"},
                 {{"--block-cost 1,0,1: found with --model gpt2-tiny"},
                  {"--block-cost 1,0,1: found 0", "allowed: above 0"}}},
        BadInput{"ChunksThatTheScheduleDoesNotTake",
                 {"--chunks", "2"},
                 {{"--chunks: found 2", "allowed with --schedule 1f1b: 1"}}},
        BadInput{
            "StagesWithAGap", {"--pp", "3", "--stages", "2,,4"}, {{"--stages: found ''", "allowed: whole numbers"}}},
        BadInput{"TooManyMicroBatches",
                 {"--global-batch-size", "70000"},
                 {{"found 70000 micro-batches", "allowed: 1 to 65535"}}},
        BadInput{
            "HeadsThatDoNotDivide", {"--hidden", "62"}, {{"--hidden: found 62", "--heads 4", "allowed", "60 or 64"}}},
        BadInput{"LlamaFfnNotGiven",
                 {"train", "--data", "corpus.txt", "--model", "llama-tiny", "--hidden", "128"},
                 {{"--ffn: found none beside --hidden 128", "allowed: a whole number"}},
                 {},
                 true},
        BadInput{"WarmUpLongerThanTheRun",
                 {"--steps", "5", "--warmup-steps", "6"},
                 {{"--warmup-steps: found 6", "--steps 5", "allowed: 0 to 5"}}},
        BadInput{"MinLrAboveLr",
                 {"--lr", "0.1", "--min-lr", "0.2"},
                 {{"--min-lr: found 0.2", "--lr 0.1", "allowed: 0 to 0.1"}}},
        BadInput{"EvaluationWithoutHeldOut",
                 {"--eval-every", "5", "--val-fraction", "0"},
                 {{"--eval-every: found 5", "--val-fraction 0", "allowed"}}},
        BadInput{"TraceWithoutOut", {"--trace"}, {{"--trace: found without --out", "allowed: with --out"}}},
        BadInput{"EmptyFileName", {"--data", "a,,b"}, {{"--data: found an empty name", "allowed: names of files"}}},
        BadInput{"OutNotUtf8", {"--out", "run\xFF"}, {{"--out: found a name that is not UTF-8", "allowed: UTF-8"}}}),
    name_of);

BadInput with_toml(std::string name, std::string toml, std::vector<Words> lines, Words further = {}) {
  Words arguments{"train", "--config", "run.toml", "--data", "corpus.txt"};
  arguments.insert(arguments.end(), further.begin(), further.end());
  return {std::move(name), arguments, std::move(lines), "model = \"gpt2-tiny\"\n" + toml, true};
}

INSTANTIATE_TEST_SUITE_P(
    ConfigFile, BadInputs,
    testing::Values(
        BadInput{"Missing",
                 {"--config", "none.toml"},
                 {{"--config none.toml: found no such file", "allowed: a readable TOML file"}}},
        BadInput{"Folder", {"--config", "."}, {{"--config .: found a folder", "allowed: a readable TOML file"}}},
        BadInput{
            "NoRegularFile", {"--config", "/dev/zero"}, {{"--config /dev/zero: found no regular file", "allowed"}}},
        BadInput{"WithoutAName", {"--config"}, {{"--config: found no value", "allowed: the name of a TOML file"}}},
        BadInput{"Twice",
                 {"--config", "run.toml", "--config=run.toml"},
                 {{"--config: found twice", "allowed: once"}},
                 "pp = 1\n"},
        with_toml("NotToml", "pp 2\n", {{"run.toml:2", "not TOML", "allowed: TOML"}}),
        with_toml("UnknownKey", "gradient_acumulation_steps = 4\n",
                  {{"run.toml:2: gradient_acumulation_steps", "unknown key", "allowed"}}),
        with_toml("MisspeltKey", "micro_bach_size = 4\n",
                  {{"run.toml:2: micro_bach_size", "unknown key", "did you mean 'micro-batch-size'"}}),
        with_toml("NestedUnknownKey", "[optimizer_settings]\nlearning_rate = 1\n",
                  {{"run.toml:2: optimizer_settings", "a table", "allowed"},
                   {"run.toml:3: optimizer_settings.learning_rate", "unknown key"}}),
        with_toml("TableForAValue", "[pp]\nranks = 2\n",
                  {{"run.toml:2: pp: found a table", "allowed: a whole number"}}),
        with_toml("TextForANumber", "pp = \"4\"\n",
                  {{"run.toml:2: pp: found the string \"4\"", "allowed: a whole number"}}),
        with_toml("FractionForAWholeNumber", "pp = 1.5\n",
                  {{"run.toml:2: pp: found the number 1.5", "allowed: a whole number"}}),
        with_toml("TrueForANumber", "pp = true\n", {{"run.toml:2: pp: found true", "allowed: a whole number"}}),
        with_toml("NumberForTrue", "tied = 1\n",
                  {{"run.toml:2: tied: found the whole number 1", "allowed: true, false"}}),
        with_toml("TextForTrue", "reshard-after-forward = \"yes\"\n",
                  {{"run.toml:2: reshard-after-forward: found the string \"yes\"", "allowed: true, false"}}),
        with_toml("NumbersForTrue", "reshard-after-forward = [1, 0]\n",
                  {{"run.toml:2: reshard-after-forward: found an array", "an array of them"}}),
        with_toml("NumberForAText", "out = 1\n", {{"run.toml:2: out: found the whole number 1", "allowed: a string"}}),
        with_toml("DateForANumber", "pp = 2020-01-01\n", {{"run.toml:2: pp: found a date", "allowed: a whole number"}}),
        with_toml("MixedList", "stages = [1, \"5\"]\n",
                  {{"run.toml:2: stages: found an array", "allowed: an array of whole numbers"}}),
        with_toml("UnknownChoice", "optimizer = \"adam\"\n",
                  {{"run.toml:2: optimizer: found the string \"adam\"", "\"adamw\", \"sgd\"", "did you mean 'adamw'"}}),
        with_toml("NanInAFile", "lr = nan\n", {{"run.toml:2: lr: found the number nan", "allowed: a finite number"}}),
        with_toml("InfinityInAFile", "lr = -inf\n",
                  {{"run.toml:2: lr: found the number -inf", "allowed: a finite number"}}),
        with_toml("Beyond64Bits", "steps = 99999999999999999999\n", {{"run.toml:2", "not TOML"}}),
        with_toml("KeyTwice", "pp = 1\npp = 2\n", {{"run.toml:3", "pp", "allowed: TOML, each key once"}}),
        with_toml("KeyTwiceInTwoSpellings", "micro-batch-size = 1\nmicro_batch_size = 1\n",
                  {{"run.toml:3: micro_batch_size: found twice", "allowed: once", "run.toml:2"}}),
        with_toml("RuleBrokenByTheFile", "pp = 7\n", {{"--pp: found 7 stages", "set in run.toml:2: pp"}}),
        with_toml("RuleBrokenByFileAndFlag", "micro-batch-size = 4\n",
                  {{"--global-batch-size 30 is not --micro-batch-size 4 × --dp 1 × an integer: 28 or 32",
                    "set in run.toml:2: micro-batch-size"}},
                  {"--global-batch-size", "30"})),
    name_of);

// Several mistakes: each is told, and no line is about a number that nobody wrote.
INSTANTIATE_TEST_SUITE_P(
    Several, BadInputs,
    testing::Values(
        BadInput{"OfFlags",
                 {"--pp", "x", "--dp", "0", "--lr", "nan", "--stepz", "100", "--zero", "7", "--warmup-steps", "1000"},
                 {{"--pp: found 'x'"},
                  {"--lr: found nan"},
                  {"--stepz", "did you mean '--steps'"},
                  {"--dp: found 0"},
                  {"--zero: found 7"},
                  {"--warmup-steps: found 1000"}}},
        BadInput{"UnreadablePpSaysNothingOfStages", {"--pp", "three", "--stages", "2,2,2"}, {{"--pp: found 'three'"}}},
        BadInput{"UnreadableModelSaysNothingOfItsSizes",
                 {"train", "--data", "corpus.txt", "--model", "gpt5", "--hidden", "63", "--pp", "40", "--dp", "-1"},
                 {{"--model: found 'gpt5'"}, {"--dp: found -1"}},
                 {},
                 true},
        BadInput{"ZeroMicroBatchSaysNothingOfTheDefaultBatch",
                 {"--micro-batch-size", "-4", "--dp", "2", "--pp", "2"},
                 {{"--micro-batch-size: found -4"}}},
        BadInput{"DefaultBatchTooLargeSaysWhereItComesFrom",
                 {"--micro-batch-size", "1000000000", "--dp", "4", "--seq-len", "1"},
                 {{"--global-batch-size: found 4000000000", "allowed: 1 to",
                   "by default --micro-batch-size × --dp × --pp"}}},
        BadInput{"MissingFileSaysNothingOfWhatItMayHold",
                 {"train", "--config", "none.toml", "--dp", "0"},
                 {{"--config none.toml: found no such file"}, {"--dp: found 0"}},
                 {},
                 true},
        with_toml("OfFileAndFlags", "pp = \"2\"\nzerro = 1\nlr = -1.0\n",
                  {{"run.toml:2: pp"},
                   {"run.toml:3: zerro", "did you mean 'zero'"},
                   {"--dp: found 'y'"},
                   {"--steps: found 0"},
                   {"--lr: found -1", "set in run.toml:4: lr"}},
                  {"--dp", "y", "--steps", "0"})),
    name_of);

TEST(Help, IsPrintedForEveryWayOfAsking) {
  const TemporaryFolder folder;
  for (const Words& words : std::vector<Words>{{}, {"--help"}, {"-h"}}) {
    const Outcome outcome = run_binary(words, folder.path());
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.standard_error, "");
    EXPECT_THAT(outcome.standard_output, HasSubstr("shardpipe train"));
    EXPECT_THAT(outcome.standard_output, HasSubstr("shardpipe verify"));
  }
  for (const Words& words :
       std::vector<Words>{{"train", "--help"}, {"train", "--pp", "x", "-h"}, {"verify", "--help"}}) {
    const Outcome outcome = run_binary(words, folder.path());
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.standard_output, HasSubstr("--global-batch-size N"));
  }
}

TEST(Version, IsPrinted) {
  const TemporaryFolder folder;
  const Outcome outcome = run_binary({"--version"}, folder.path());
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.standard_output, testing::MatchesRegex("shardpipe [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(PrintConfig, OfTheBinaryParsesBackToItself) {
  const TemporaryFolder folder;
  const Words flags{"train",    "--model", "llama-tiny", "--pp",  "3",       "--zero=2", "--data",        "a b.txt,c",
                    "--data=d", "--lr",    "1e-3",       "--out", "x \"y\"", "--trace",  "--print-config"};
  const Outcome first = run_binary(flags, folder.path());
  EXPECT_EQ(first.exit_code, 0) << first.standard_error;
  folder.write("run.toml", first.standard_output);
  const Outcome second = run_binary({"train", "--config", "run.toml", "--print-config"}, folder.path());
  EXPECT_EQ(second.exit_code, 0) << second.standard_error;
  EXPECT_EQ(first.standard_output, second.standard_output);
}

}  // namespace
}  // namespace shardpipe
