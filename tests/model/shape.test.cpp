#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/attention.h"
#include "model/shape/model.h"
#include "model/shape/pieces.h"
#include "model/shape/work.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::vector<std::string> group_names(const Model& model) {
  std::vector<std::string> names;
  for (const ParameterGroup& group : model.groups) names.push_back(group.name);
  return names;
}

std::vector<std::string> tensor_names(const ParameterGroup& group) {
  std::vector<std::string> names;
  for (const Tensor& tensor : group.tensors) names.push_back(tensor.name);
  return names;
}

ModelConfig two_layers(const char* preset, bool tied) {
  ModelConfig config = model_preset(preset);
  config.layers = 2;
  config.tied_embeddings = tied;
  return config;
}

TEST(Presets, HaveThePublishedNumberOfParameters) {
  const auto parameters = [](const char* preset) { return make_model(model_preset(preset)).parameters(); };
  EXPECT_EQ(parameters("gpt2-124m"), 124'439'808);
  ModelConfig untied = model_preset("gpt2-124m");
  untied.tied_embeddings = false;
  EXPECT_EQ(make_model(untied).parameters(), 163'037'184);
  EXPECT_EQ(parameters("gpt2-350m"), 354'823'168);
  EXPECT_EQ(parameters("gpt2-774m"), 774'030'080);
  EXPECT_EQ(parameters("gpt2-1.5b"), 1'557'611'200);
  EXPECT_EQ(parameters("llama-1b"), 1'235'814'400);
  EXPECT_EQ(parameters("llama-8b"), 8'030'261'248);
  EXPECT_EQ(parameters("llama-70b"), 70'553'706'496);
}

TEST(Presets, Gpt2CountsFollowTheClosedForm) {
  for (const char* preset : {"gpt2-tiny", "gpt2-10m", "gpt2-124m", "gpt2-1.5b"}) {
    for (const bool tied : {true, false}) {
      ModelConfig config = model_preset(preset);
      config.tied_embeddings = tied;
      const int64_t d = config.hidden, table = config.vocab_size * d;
      const int64_t expected =
          table + config.seq_len * d + config.layers * (12 * d * d + 13 * d) + 2 * d + (tied ? 0 : table);
      EXPECT_EQ(make_model(config).parameters(), static_cast<uint64_t>(expected)) << preset;
    }
  }
}

TEST(Presets, TheSmallOnesAreWhatTheirNamesSay) {
  const uint64_t ten_million = make_model(model_preset("gpt2-10m")).parameters();
  EXPECT_GT(ten_million, 9'500'000);
  EXPECT_LT(ten_million, 10'500'000);
  const ModelConfig llama = model_preset("llama-tiny");
  EXPECT_EQ(llama.layers, 4);
  EXPECT_EQ(llama.hidden, 64);
  EXPECT_EQ(llama.heads, 4);
  EXPECT_EQ(llama.kv_heads, 2);
}

TEST(Presets, AllAreValidAndFoundByTheirNames) {
  EXPECT_EQ(model_presets().size(), 11);
  for (const std::string& name : model_presets()) {
    EXPECT_EQ(model_preset(name).name, name);
    EXPECT_THAT(problems_of(model_preset(name)), ElementsAre());
  }
}

TEST(Presets, AnUnknownNameGetsTheNearestOne) {
  try {
    model_preset("gpt2-124");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'gpt2-124'"));
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'gpt2-124m'"));
    EXPECT_THAT(error.what(), HasSubstr("llama-70b"));
  }
}

TEST(Problems, AreAllToldAtOnceWithTheNearestRightValues) {
  ModelConfig config = model_preset("llama-tiny");
  config.hidden = 66;
  config.kv_heads = 3;
  config.norm_epsilon = 0;
  config.rope_theta = 0.5;
  EXPECT_THAT(problems_of(config),
              ElementsAre(AllOf(StartsWith("--hidden: found 66,"), HasSubstr("64 or 68 would be")),
                          AllOf(StartsWith("--kv-heads: found 3,"), HasSubstr("2 would be")),
                          StartsWith("--norm-epsilon: found 0,"), StartsWith("--rope-theta: found 0.5,")));
  EXPECT_THROW(make_model(config), InputError);
}

TEST(Problems, SizesOutOfRange) {
  ModelConfig config = model_preset("gpt2-tiny");
  config.layers = 0;
  config.heads = -4;
  config.vocab_size = int64_t{1} << 40;
  EXPECT_THAT(problems_of(config), ElementsAre(StartsWith("--layers: found 0,"), StartsWith("--heads: found -4,"),
                                               StartsWith("--vocab-size: found 1099511627776,")));
}

TEST(Problems, RotaryNeedsAnEvenHead) {
  ModelConfig config = model_preset("llama-tiny");
  config.hidden = 60;  // heads of 15
  EXPECT_THAT(problems_of(config),
              ElementsAre(AllOf(StartsWith("--hidden: found 60,"), HasSubstr("56 or 64 would do"))));
  config.family = Family::Gpt2;
  config.kv_heads = config.heads;
  EXPECT_THAT(problems_of(config), ElementsAre());
}

TEST(Problems, Gpt2HasNoGroupedQueries) {
  ModelConfig config = model_preset("gpt2-tiny");
  config.kv_heads = 2;
  EXPECT_THAT(problems_of(config), ElementsAre(StartsWith("--kv-heads: found 2, allowed: 4")));
}

TEST(Groups, TiedTablesAreAGroupThatTwoBlocksUse) {
  const Model gpt2 = make_model(two_layers("gpt2-tiny", true));
  EXPECT_THAT(group_names(gpt2), ElementsAre("embedding", "tied", "layer 0", "layer 1", "head"));
  EXPECT_THAT(gpt2.blocks.front().groups, ElementsAre(0, 1));
  EXPECT_THAT(gpt2.blocks.back().groups, ElementsAre(4, 1));
  EXPECT_THAT(tensor_names(gpt2.groups[0]), ElementsAre("wpe.weight"));
  EXPECT_THAT(tensor_names(gpt2.groups[1]), ElementsAre("wte.weight"));
  EXPECT_THAT(tensor_names(gpt2.groups[4]), ElementsAre("ln_f.weight", "ln_f.bias"));

  const Model llama = make_model(two_layers("llama-tiny", true));
  EXPECT_THAT(group_names(llama), ElementsAre("tied", "layer 0", "layer 1", "head"));
  EXPECT_THAT(llama.blocks.front().groups, ElementsAre(0));
  EXPECT_THAT(llama.blocks.back().groups, ElementsAre(3, 0));
  EXPECT_THAT(tensor_names(llama.groups[0]), ElementsAre("model.embed_tokens.weight"));
  EXPECT_THAT(tensor_names(llama.groups[3]), ElementsAre("model.norm.weight"));
}

TEST(Groups, UntiedBlocksShareNothing) {
  const Model gpt2 = make_model(two_layers("gpt2-tiny", false));
  EXPECT_THAT(group_names(gpt2), ElementsAre("embedding", "layer 0", "layer 1", "head"));
  EXPECT_THAT(tensor_names(gpt2.groups[0]), ElementsAre("wpe.weight", "wte.weight"));
  EXPECT_THAT(tensor_names(gpt2.groups[3]), ElementsAre("ln_f.weight", "ln_f.bias", "lm_head.weight"));

  const Model llama = make_model(two_layers("llama-tiny", false));
  EXPECT_THAT(tensor_names(llama.groups[0]), ElementsAre("model.embed_tokens.weight"));
  EXPECT_THAT(tensor_names(llama.groups[3]), ElementsAre("model.norm.weight", "lm_head.weight"));
  for (const Model* model : {&gpt2, &llama}) {
    for (size_t b = 0; b < model->blocks.size(); ++b) EXPECT_THAT(model->blocks[b].groups, ElementsAre(b));
  }
}

TEST(Groups, ALayersTensorsAreInCanonicalOrder) {
  EXPECT_THAT(tensor_names(make_model(two_layers("gpt2-tiny", true)).groups[3]),
              ElementsAre("h.1.ln_1.weight", "h.1.ln_1.bias", "h.1.attn.c_attn.weight", "h.1.attn.c_attn.bias",
                          "h.1.attn.c_proj.weight", "h.1.attn.c_proj.bias", "h.1.ln_2.weight", "h.1.ln_2.bias",
                          "h.1.mlp.c_fc.weight", "h.1.mlp.c_fc.bias", "h.1.mlp.c_proj.weight", "h.1.mlp.c_proj.bias"));
  EXPECT_THAT(tensor_names(make_model(two_layers("llama-tiny", false)).groups[1]),
              ElementsAre("model.layers.0.input_layernorm.weight", "model.layers.0.self_attn.q_proj.weight",
                          "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
                          "model.layers.0.self_attn.o_proj.weight", "model.layers.0.post_attention_layernorm.weight",
                          "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
                          "model.layers.0.mlp.down_proj.weight"));
}

TEST(Groups, TensorsLieOneBehindTheOther) {
  for (const char* preset : {"gpt2-124m", "llama-1b"}) {
    for (const ParameterGroup& group : make_model(model_preset(preset)).groups) {
      uint64_t offset = 0;
      for (const Tensor& tensor : group.tensors) {
        uint64_t elements = 1;
        for (const int64_t extent : tensor.shape) elements *= static_cast<uint64_t>(extent);
        EXPECT_EQ(tensor.offset, offset) << tensor.name;
        EXPECT_EQ(tensor.elements, elements) << tensor.name;
        offset += tensor.elements;
      }
      EXPECT_EQ(group.elements, offset) << group.name;
    }
  }
}

TEST(Groups, MatricesDecayAndNormsBiasesAndPositionsDoNot) {
  for (const char* preset : {"gpt2-tiny", "llama-tiny"}) {
    for (const ParameterGroup& group : make_model(model_preset(preset)).groups) {
      for (const Tensor& tensor : group.tensors) {
        EXPECT_EQ(tensor.decays, tensor.shape.size() == 2 && tensor.name != "wpe.weight") << tensor.name;
      }
    }
  }
}

TEST(Blocks, AreEmbeddingLayersHead) {
  const Model model = make_model(two_layers("gpt2-tiny", true));
  std::vector<std::string> names;
  for (const Block& block : model.blocks) names.push_back(block.name);
  EXPECT_THAT(names, ElementsAre("embedding", "layer 0", "layer 1", "head"));
  EXPECT_EQ(model.blocks[2].kind, BlockKind::Layer);
  EXPECT_EQ(model.blocks[2].layer, 1);
  EXPECT_EQ(model.blocks.back().layer, -1);
}

TEST(Sizes, SavedBytesOfAGpt2LayerAreNineActivationsAndTheStatistics) {
  const Model model = make_model(model_preset("gpt2-124m"));
  const MicroBatchShape shape{2, 1024};
  const uint64_t activation = activation_bytes(model, shape);
  EXPECT_EQ(activation, 2 * 1024 * 768 * 4);
  EXPECT_EQ(block_bytes(model, model.blocks[1], shape).saved, 9 * activation + (4 + 12) * 2048 * 4);
  EXPECT_EQ(block_bytes(model, model.blocks[1], shape).between, 8 * activation + 8 * 768 * 4);
  EXPECT_EQ(block_bytes(model, model.blocks[0], shape).saved, 0);
  EXPECT_EQ(block_bytes(model, model.blocks.back(), shape).saved, uint64_t{2048} * (50257 + 3) * 4);
}

TEST(Sizes, HalfOfItIn16BitsButForStatisticsAndFinishedGradients) {
  const Model model = make_model(model_preset("gpt2-124m"));
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    const MicroBatchShape shape{2, 1024, dtype};
    const uint64_t activation = activation_bytes(model, shape);
    EXPECT_EQ(activation, 2 * 1024 * 768 * 2);
    EXPECT_EQ(block_bytes(model, model.blocks[1], shape).saved, 9 * activation + (4 + 12) * 2048 * 4);
    EXPECT_EQ(block_bytes(model, model.blocks[1], shape).between, 8 * activation + 4 * 768 * (4 + 2));
    EXPECT_EQ(block_bytes(model, model.blocks.back(), shape).saved, uint64_t{2048} * (50257 * 2 + 3 * 4));
  }
}

// Full keeps the block's input alone, which is not among its saved bytes; selective does not keep the attention's
// output and its statistics.
TEST(Sizes, RecomputeMovesBytesFromWhatIsKeptToWhatIsMadeAgain) {
  for (const char* preset : {"gpt2-124m", "llama-1b"}) {
    const Model model = make_model(model_preset(preset));
    const MicroBatchShape shape{2, 1024};
    const uint64_t kept = block_bytes(model, model.blocks[1], shape).saved;
    const uint64_t attention =
        activation_bytes(model, shape) + static_cast<uint64_t>(shape.tokens() * model.config.heads) * 4;
    const BlockBytes selective = block_bytes(model, model.blocks[1], shape, Recompute::Selective);
    EXPECT_EQ(selective.recomputed, attention);
    EXPECT_EQ(selective.saved, kept - attention);
    const BlockBytes full = block_bytes(model, model.blocks[1], shape, Recompute::Full);
    EXPECT_EQ(full.recomputed, kept);
    EXPECT_EQ(full.saved, 0);
    const uint64_t head = block_bytes(model, model.blocks.back(), shape).saved;
    EXPECT_EQ(block_bytes(model, model.blocks.back(), shape, Recompute::Selective).saved, head);
    EXPECT_EQ(block_bytes(model, model.blocks.back(), shape, Recompute::Full).recomputed, head);
  }
}

TEST(Sizes, BookedAttentionWorkspaceIsWhatTheKernelNeeds) {
  for (const std::string& preset : model_presets()) {
    ModelConfig config = model_preset(preset);
    for (const int64_t sequence : {int64_t{1}, int64_t{63}, config.seq_len}) {
      for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
        for (const double dropout : {0.0, 0.1}) {
          config.dropout = dropout;
          EXPECT_EQ(attention_workspace_bytes(config, {2, sequence, dtype}),
                    kernels::attention_workspace_bytes(
                        {2, sequence, config.heads, config.kv_heads, config.hidden / config.heads}, dtype, dropout > 0))
              << preset << ", sequence " << sequence << ", " << to_string(dtype) << ", dropout " << dropout;
        }
      }
    }
  }
}

TEST(Flops, CountMatricesTwiceAndHalfOfAttention) {
  const Model model = make_model(model_preset("gpt2-124m"));
  const double tokens = 2 * 512, hidden = 768;
  EXPECT_EQ(forward_flops(model, model.blocks[0], {2, 512}), 0);
  EXPECT_EQ(forward_flops(model, model.blocks[1], {2, 512}),
            2 * tokens * 12 * hidden * hidden + 2 * tokens * 512 * hidden);
  EXPECT_EQ(forward_flops(model, model.blocks.back(), {2, 512}), 2 * tokens * hidden * 50257);
  const auto again = [&](size_t block, Recompute recompute) {
    return recompute_flops(model, model.blocks[block], {2, 512}, recompute);
  };
  EXPECT_EQ(again(1, Recompute::None), 0);
  EXPECT_EQ(again(1, Recompute::Selective), 2 * tokens * 512 * hidden);
  EXPECT_EQ(again(1, Recompute::Full), 2 * tokens * 8 * hidden * hidden + 2 * tokens * 512 * hidden);
  EXPECT_EQ(again(0, Recompute::Full), 0);
  EXPECT_EQ(again(13, Recompute::Full), forward_flops(model, model.blocks[13], {2, 512}));
}

Product attention_of(const Work& work) { return work.products.back(); }

// What is multiplied forwards is multiplied twice backwards, but that attention makes its scores again: 2 and 5
// products.
TEST(Work, OfABackwardIsTwiceTheForwardAndScoresAgain) {
  for (const std::string& preset : model_presets()) {
    const Model model = make_model(model_preset(preset));
    const MicroBatchShape shape{2, 128, DType::BFloat16};
    for (const Block& block : model.blocks) {
      const Work forward = forward_work(model, block, shape), input = backward_input_work(model, block, shape),
                 weight = backward_weight_work(model, block, shape);
      const double scores = block.kind == BlockKind::Layer ? attention_of(forward).flops() / 2 : 0;
      EXPECT_DOUBLE_EQ(input.flops() + weight.flops(), 2 * forward.flops() + scores) << preset << ", " << block.name;
      EXPECT_DOUBLE_EQ(weight.flops(), forward.flops() - 2 * scores) << preset << ", " << block.name;
      EXPECT_GT(forward.bytes, 0);
      EXPECT_GT(weight.bytes, 0);
      EXPECT_EQ(input.bytes > 0, block.kind != BlockKind::Embedding);
      EXPECT_DOUBLE_EQ(forward.flops(), forward_flops(model, block, shape));
    }
  }
}

// [tokens, out] = [tokens, in] × [in, out]; its gradients are [tokens, in] and [out, in].
TEST(Work, ProductsHaveTheShapesOfTheLayers) {
  const Model model = make_model(model_preset("llama-8b"));
  const MicroBatchShape shape{1, 8192, DType::BFloat16};
  const Work forward = forward_work(model, model.blocks[1], shape);
  const auto has = [](const Work& work, Product product) {
    return std::ranges::find(work.products, product) != work.products.end();
  };
  EXPECT_TRUE(has(forward, {1, 8192, 1024, 4096}));   // keys
  EXPECT_TRUE(has(forward, {1, 8192, 14336, 4096}));  // up
  EXPECT_TRUE(has(forward, {1, 8192, 4096, 14336}));  // down
  EXPECT_TRUE(has(forward, {2 * 32 / 2.0, 8192, 8192, 128}));
  EXPECT_TRUE(has(backward_input_work(model, model.blocks[1], shape), {1, 8192, 4096, 1024}));
  EXPECT_TRUE(has(backward_weight_work(model, model.blocks[1], shape), {1, 1024, 4096, 8192}));
  EXPECT_TRUE(has(forward_work(model, model.blocks.back(), shape), {1, 8192, 128256, 4096}));
}

TEST(Work, BytesAreOfTheActivationsType) {
  const Model model = make_model(model_preset("gpt2-124m"));
  for (const Block& block : model.blocks)
    EXPECT_DOUBLE_EQ(forward_work(model, block, {4, 1024, DType::Float32}).bytes,
                     2 * forward_work(model, block, {4, 1024, DType::BFloat16}).bytes);
}

}  // namespace
}  // namespace shardpipe
