// `shardpipe plan` as a person sees it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/plan_answer.h"
#include "cli/run_binary.h"
#include "train/trainer.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

// Of a model that is quickly planned; `more` wins.
Words asking(const Words& more, const std::string& model = "gpt2-124m") {
  Words words{"plan", "--model", model, "--devices", "8", "--device-preset", "a100-40g", "--global-batch-size", "64"};
  for (size_t i = 0; i < more.size(); ++i) {
    const auto before = std::ranges::find(words, more[i]);
    if (more[i].starts_with("--") && before != words.end()) words.erase(before, before + 2);
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class Plan : public testing::Test {
 protected:
  Outcome run(const Words& more) { return run_binary(asking(more), folder_.path()); }
  const TemporaryFolder folder_;
};

TEST_F(Plan, RanksLayoutsAndSaysWhatToDo) {
  const Outcome outcome = run({"--top", "3"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.standard_error, "") << "progress is for terminals";
  EXPECT_THAT(
      outcome.standard_output,
      AllOf(HasSubstr("gpt2-124m: 124 M parameters. 64 sequences of 1024 tokens a step, bf16. 8 × a100-40g"),
            HasSubstr("\n3  "), Not(HasSubstr("\n4  ")), HasSubstr("tokens/s"), HasSubstr("MFU"), HasSubstr("bound by"),
            HasSubstr("arenas are exact"), HasSubstr("20 tokens a parameter"), HasSubstr("--explain N")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "nothing is written";
}

TEST_F(Plan, ExplainsARow) {
  const Outcome outcome = run({"--explain", "2", "--pp", "2"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.standard_output,
              AllOf(HasSubstr("Row 2: "), HasSubstr("Peak bytes of each kind"), HasSubstr("Where a step's time goes"),
                    HasSubstr("rank 0  "), HasSubstr("To train so\n  shardpipe train --model gpt2-124m --data FILE")));
}

// The command that a row gives runs, and needs the bytes that the row says: also of what is sharded, computed again,
// kept elsewhere or in 16 bits.
TEST_F(Plan, TheCommandOfARowTrainsInTheBytesThatItSays) {
  folder_.write("text", std::string(1 << 14, 'a'));
  size_t trained = 0;
  for (const Words& more : std::vector<Words>{{"--precision", "fp32"},
                                              {"--zero", "3", "--recompute", "full"},
                                              {"--schedule", "zb-v", "--precision", "bf16"},
                                              {"--offload", "optimizer,params", "--reduce-every", "micro"}}) {
    Words words = asking({"--devices", "4", "--global-batch-size", "8", "--json", "--top", "2"}, "llama-tiny");
    words.insert(words.end(), more.begin(), more.end());
    const Outcome planned = run_binary(words, folder_.path());
    ASSERT_EQ(planned.exit_code, 0) << planned.standard_error;
    const Json layouts = Json::parse(planned.standard_output).at("layouts");
    for (const Json& layout : layouts) {
      std::istringstream command(layout.at("train").get<std::string>());
      Words train;
      for (std::string word; command >> word;) train.push_back(word == "FILE" ? "text" : word);
      train.erase(train.begin());
      const std::string out = fmt::format("run{}", ++trained);
      train.insert(train.end(), {"--steps", "1", "--out", out});
      const Outcome run = run_binary(train, folder_.path());
      ASSERT_EQ(run.exit_code, 0) << run.standard_error;
      const Json summary = Json::parse(content_of(folder_.path() / out / "summary.json"));
      EXPECT_EQ(layout.at("peak_bytes"),
                std::ranges::max(summary.at("planned_peak_bytes").get<std::vector<uint64_t>>()))
          << layout.at("train");
    }
  }
  EXPECT_EQ(trained, 8u);
}

TEST_F(Plan, FixedValuesAreInEveryRow) {
  const Outcome outcome = run({"--json", "--pp", "2", "--zero", "2", "--micro-batch-size", "4", "--recompute",
                               "every:3", "--schedule", "interleaved", "--chunks", "3", "--replicate", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.standard_error;
  const Json layouts = Json::parse(outcome.standard_output).at("layouts");
  EXPECT_FALSE(layouts.empty());
  for (const Json& layout : layouts) {
    EXPECT_EQ(layout.at("pp"), 2);
    EXPECT_EQ(layout.at("dp"), 4);
    EXPECT_EQ(layout.at("zero"), 2);
    EXPECT_EQ(layout.at("micro_batch_size"), 4);
    EXPECT_EQ(layout.at("recompute"), "every:3");
    EXPECT_EQ(layout.at("schedule"), "interleaved");
    EXPECT_EQ(layout.at("chunks"), 3);
    EXPECT_EQ(layout.at("replicate"), 2);
  }
}

TEST_F(Plan, ReadsAModelOfHuggingFace) {
  folder_.write("gpt2.json", R"({"model_type":"gpt2","vocab_size":50257,"n_positions":1024,"n_embd":768,"n_layer":12,
    "n_head":12,"n_inner":null,"activation_function":"gelu_new","layer_norm_epsilon":1e-5,
    "resid_pdrop":0.0,"embd_pdrop":0.0,"attn_pdrop":0.0})");
  const Outcome preset = run({}), file = run({"--model", "gpt2.json"});
  EXPECT_EQ(file.exit_code, 0) << file.standard_error;
  EXPECT_EQ(file.standard_output, preset.standard_output) << "it is the preset";
  // transformers 4 and 5 keep the rotary settings in different places
  const std::string llama = R"({"model_type":"llama","vocab_size":128256,"hidden_size":4096,"intermediate_size":14336,
    "num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"max_position_embeddings":8192,
    "rms_norm_eps":1e-5,"tie_word_embeddings":false,"hidden_act":"silu",)";
  folder_.write("old.json", llama + R"("rope_theta":500000.0,"rope_scaling":null})");
  folder_.write("new.json", llama + R"("rope_parameters":{"rope_type":"default","rope_theta":500000.0}})");
  const Outcome config = run_binary({"train", "--model", "llama-8b", "--print-config"}, folder_.path());
  for (const char* name : {"old.json", "new.json"}) {
    const Outcome read = run_binary({"train", "--model", name, "--print-config"}, folder_.path());
    EXPECT_EQ(read.exit_code, 0) << read.standard_error;
    EXPECT_EQ(read.standard_output, config.standard_output) << name;
  }
  const Outcome shorter =
      run_binary({"train", "--model", "new.json", "--seq-len", "128", "--print-config"}, folder_.path());
  EXPECT_THAT(shorter.standard_output, HasSubstr("seq-len = 128\n")) << "a flag wins";
}

TEST_F(Plan, AModelFileWithOtherMathematicsIsRefusedByName) {
  folder_.write("bad.json", R"({"model_type":"llama","vocab_size":"many","hidden_size":64,"intermediate_size":128,
    "num_hidden_layers":2,"num_attention_heads":4,"max_position_embeddings":64,"hidden_act":"relu","mlp_bias":true,
    "head_dim":32,"rope_scaling":{"rope_type":"llama3","factor":8.0},"rms_norm_eps":"small"})");
  const Outcome bad = run({"--model", "bad.json"});
  EXPECT_EQ(bad.exit_code, 2);
  for (const char* line :
       {"bad.json: vocab_size: found \"many\", allowed: a whole number",
        "bad.json: hidden_act: found \"relu\", allowed: \"silu\"", "bad.json: mlp_bias: found true, allowed: false",
        "bad.json: head_dim: found 32, allowed: 16", "bad.json: rope_scaling: found {",
        "bad.json: rms_norm_eps: found \"small\", allowed: a finite number"})
    EXPECT_THAT(bad.standard_error, HasSubstr(line));
  for (const char* content :
       {"", "{", "[]", "3", "{\"model_type\":\"bert\"}", "{\"model_type\":7}", "{}", "\xff\xfe"}) {
    folder_.write("broken.json", content);
    const Outcome broken = run({"--model", "broken.json"});
    EXPECT_EQ(broken.exit_code, 2) << content;
    EXPECT_EQ(broken.error_lines().size(), 1u) << broken.standard_error;
    EXPECT_THAT(broken.standard_error, AllOf(HasSubstr("broken.json"), HasSubstr("allowed: "))) << content;
  }
  EXPECT_EQ(run({"--model", "nowhere.json"}).exit_code, 2);
}

// One clear line each, all at once, and exit code 2.
TEST_F(Plan, ImpossibleRequestsAreRefused) {
  struct Bad {
    Words more;
    Words lines;
  };
  for (const Bad& bad : std::vector<Bad>{
           {{"--devices", "0"}, {"--devices: found 0, allowed: 1 to 1000000"}},
           {{"--devices", "-4", "--top", "0"}, {"--devices: found -4", "--top: found 0, allowed: 1 to 1000"}},
           {{"--devices", "many"}, {"--devices: found 'many', allowed: a whole number"}},
           {{"--device-preset", "h10"},
            {"--device-preset: found 'h10', allowed: a100-40g, a100-80g, h100, h200, cpu (did you mean 'h100'?)"}},
           {{"--links", "ib-nan"}, {"--links: found 'ib-nan', allowed: nvlink or pcie inside a node, ib-N or eth-N"}},
           {{"--links", "ib--1"}, {"--links: found 'ib--1'"}},
           {{"--memory", "-5"}, {"--memory: found '-5', allowed: a number of bytes"}},
           {{"--memory", "10k"}, {"--memory: found 9.77 KiB for an arena, in which no layout of this model fits"}},
           {{"--tokens", "x"}, {"--tokens: found 'x', allowed: a number"}},
           {{"--json", "--emit", "megatron"}, {"--json: found beside --emit"}},
           {{"--emit", "megatorn"},
            {"--emit: found 'megatorn', allowed: deepspeed, megatron, torchtitan (did you mean 'megatron'?)"}},
           {{"--explain", "11"}, {"--explain: found 11, allowed: 1 to 10"}},
           {{"--explain", "5", "--pp", "8", "--zero", "0", "--schedule", "1f1b", "--micro-batch-size", "8",
             "--recompute", "none"},
            {"--explain: found 5, allowed: 1 to 1, the rows that there are"}},
           {{"--global-batch-size", "3", "--devices", "17"}, {"--global-batch-size: found 3 for --devices 17"}},
           {{"--zero", "1,2"}, {"--zero: found a stage for each pipeline rank"}},
           {{"--schedule", "zbv"}, {"--schedule: found 'zbv', allowed of plan: gpipe"}},
           {{"--zero", "7"}, {"--devices 8: found no layout"}},
           {{"--micro-batch-size", "3"}, {"--global-batch-size 64"}},
           {{"--micro-batch-size", "0"}, {"--micro-batch-size"}},
           {{"--recompute", "some"}, {"--recompute: found 'some'"}},
           {{"--model", "synthetic"}, {"--model: found synthetic"}},
           {{"--steps", "3"}, {"--steps: found an unknown flag of plan"}},
           {{"--print-config"}, {"--print-config: found an unknown flag of plan"}}}) {
    const Outcome outcome = run(bad.more);
    EXPECT_EQ(outcome.exit_code, 2) << fmt::format("{}", fmt::join(bad.more, " ")) << outcome.standard_output;
    EXPECT_EQ(outcome.standard_output, "");
    EXPECT_THAT(outcome.error_lines(), Each(StartsWith("shardpipe: ")));
    ASSERT_EQ(outcome.error_lines().size(), bad.lines.size()) << outcome.standard_error;
    for (size_t i = 0; i < bad.lines.size(); ++i) EXPECT_THAT(outcome.error_lines()[i], HasSubstr(bad.lines[i]));
  }
  folder_.write("synthetic.toml", "model = \"synthetic\"\n");
  const Outcome synthetic = run_binary(
      {"plan", "--config", "synthetic.toml", "--devices", "8", "--device-preset", "h100", "--global-batch-size", "8"},
      folder_.path());
  EXPECT_EQ(synthetic.exit_code, 2);
  EXPECT_THAT(synthetic.standard_error, HasSubstr("synthetic.toml:1: model: found synthetic"));
  const Outcome bare = run_binary({"plan"}, folder_.path());
  EXPECT_EQ(bare.exit_code, 2);
  for (const char* flag : {"--model: found none", "--devices: found none", "--device-preset: found none",
                           "--global-batch-size: found none"})
    EXPECT_THAT(bare.standard_error, HasSubstr(flag));
}

// What is advised where nothing fits makes it fit.
TEST_F(Plan, TheSmallestChangesThatMakeItFitDo) {
  const Words small{"--devices", "2", "--global-batch-size", "8", "--memory", "400MB"};
  const Outcome refused = run(small);
  ASSERT_EQ(refused.exit_code, 2);
  const std::string text = refused.standard_error;
  const size_t memory = text.find("allowed: --memory "), devices = text.find("or --devices ");
  ASSERT_NE(memory, std::string::npos) << text;
  ASSERT_NE(devices, std::string::npos) << text;
  const std::string bytes = text.substr(memory + 18, text.find(' ', memory + 18) - memory - 18);
  std::istringstream change(text.substr(devices + 3));
  Words more;
  for (std::string word; change >> word;) more.push_back(word);
  EXPECT_EQ(run({"--devices", "2", "--global-batch-size", "8", "--memory", bytes}).exit_code, 0) << bytes;
  more.insert(more.end(), {"--memory", "400MB"});
  if (std::ranges::find(more, "--global-batch-size") == more.end())
    more.insert(more.end(), {"--global-batch-size", "8"});
  EXPECT_EQ(run(more).exit_code, 0) << fmt::format("{}", fmt::join(more, " "));
}

TEST_F(Plan, AdvisesOnTheUsualMistakes) {
  EXPECT_THAT(run({}).standard_output, HasSubstr("plain data parallelism (DDP), is the simplest"));
  EXPECT_THAT(
      run({"--tokens", "100M"}).standard_output,
      AllOf(HasSubstr("100 M tokens take row 1"), HasSubstr("far below the 20"), HasSubstr("would learn more")));
  EXPECT_THAT(run({"--tokens", "3G"}).standard_output, Not(HasSubstr("far below")));
  const Outcome one = run({"--devices", "1"});
  EXPECT_THAT(one.standard_output, Not(HasSubstr("DDP")));
}

TEST_F(Plan, SettingsOfOtherTrainersSayWhatTheyCannot) {
  const Words hard{"--pp", "2", "--zero", "3", "--schedule", "zb-h1", "--recompute", "full", "--replicate", "2"};
  const auto emitted = [&](const std::string& framework, Words more) {
    more.insert(more.end(), {"--emit", framework});
    return run(more);
  };
  const Outcome deepspeed = emitted("deepspeed", hard);
  EXPECT_EQ(deepspeed.exit_code, 0);
  const Json json = Json::parse(deepspeed.standard_output);
  EXPECT_EQ(json.at("zero_optimization").at("stage"), 3);
  EXPECT_EQ(json.at("zero_optimization").at("mics_shard_size"), 2);
  EXPECT_EQ(json.at("bf16").at("enabled"), true);
  EXPECT_EQ(json.at("train_batch_size"), 64);
  EXPECT_EQ(
      json.at("train_micro_batch_size_per_gpu").get<int>() * json.at("gradient_accumulation_steps").get<int>() * 4, 64);
  EXPECT_THAT(deepspeed.standard_error,
              AllOf(HasSubstr("num_stages=2"), HasSubstr("refuses it beside a pipeline"), HasSubstr("has 1F1B alone")));
  const Outcome megatron = emitted("megatron", hard);
  EXPECT_THAT(megatron.standard_output,
              AllOf(HasSubstr("--pipeline-model-parallel-size 2\n"), HasSubstr("optim_grads_params"),
                    HasSubstr("--recompute-granularity full"), HasSubstr("--num-layers 12\n")));
  EXPECT_THAT(megatron.standard_error, HasSubstr("these settings run 1F1B"));
  const Outcome torchtitan = emitted("torchtitan", hard);
  EXPECT_THAT(torchtitan.standard_output,
              AllOf(HasSubstr("data_parallel_shard_degree = 2\n"), HasSubstr("data_parallel_replicate_degree = 2\n"),
                    HasSubstr("pipeline_parallel_schedule_csv = \"zb-h1.csv\"")));
  EXPECT_THAT(torchtitan.standard_error, HasSubstr("shardpipe show --schedule zb-h1 --pp 2"));
  for (const std::string framework : {"deepspeed", "megatron", "torchtitan"}) {
    const Outcome plain =
        emitted(framework, {"--pp", "1", "--zero", "0", "--recompute", "none", "--model", "llama-1b"});
    EXPECT_EQ(plain.exit_code, 0);
    EXPECT_EQ(plain.standard_error, "") << framework << " has all of plain data parallelism";
  }
}

}  // namespace
}  // namespace shardpipe
