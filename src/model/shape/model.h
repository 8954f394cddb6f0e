// What a model is made of, in numbers: blocks (embedding, each transformer layer, head), the parameters of each, and
// the bytes and FLOPs that a micro-batch costs there. Pure arithmetic; knows no device and no layout.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace shardpipe {

enum class Family : uint8_t { Gpt2, Llama };

// The numbers that define an architecture. GPT-2: LayerNorm, GELU, learned positions, biases. Llama: RMSNorm, SwiGLU,
// rotary positions, grouped-query attention, no biases.
struct ModelConfig {
  std::string name;  // the preset that it started from
  Family family = Family::Gpt2;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab_size = 0, seq_len = 0;
  bool tied_embeddings = true;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000.0;
  double dropout =
      0;  // GPT-2, in training: after the embedding, of attention's probabilities, of both residual branches
  bool operator==(const ModelConfig&) const = default;
};

// gpt2-tiny, llama-tiny, synthetic (gpt2-tiny's sizes, 8 layers: see is_synthetic), gpt2-10m, gpt2-124m, gpt2-350m,
// gpt2-774m, gpt2-1.5b, llama-1b, llama-8b, llama-70b.
std::vector<std::string> model_presets();
ModelConfig model_preset(std::string_view name);  // InputError that lists the presets and the nearest name

// A model whose blocks only take time (--block-cost): for measuring schedules with the real executor. It computes and
// learns nothing.
bool is_synthetic(const ModelConfig&);

// Every rule of ModelConfig that does not hold, a line each (heads divide hidden, kv_heads divide heads, even head_dim
// for rotary, …): names the flag, the number found and the nearest right ones.
std::vector<std::string> problems_of(const ModelConfig&);

// How a tensor starts: GPT-2's rules (Radford et al. 2019): normal(0, 0.02), residual projections scaled by
// 1/√(2·layers); ones for norm gains, zeros for biases.
struct Initial {
  enum class Kind : uint8_t { Zeros, Ones, Normal } kind = Kind::Zeros;
  float deviation = 0;
};

struct Tensor {
  std::string name;  // as Hugging Face names it: "h.0.attn.c_attn.weight", "model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape;  // linear weights are [out, in] (GPT-2's Conv1D files hold the transpose)
  uint64_t offset = 0;         // first element in its parameter group
  uint64_t elements = 0;
  bool decays = false;  // weight decay: matrices only, not norms, biases or position embeddings
  Initial initial;
};

// The parameters that are sharded, gathered and reduced together: one flat array. A block has one of its own; a
// tied embedding is a group of its own, which two blocks use, so that its shards line up wherever those blocks are.
struct ParameterGroup {
  std::string name;  // "embedding", "tied", "layer 0", "head"
  std::vector<Tensor> tensors;
  uint64_t elements = 0;
};

enum class BlockKind : uint8_t { Embedding, Layer, Head };

// What of a block is computed again just before its backward, instead of being kept since its forward.
enum class Recompute : uint8_t {
  None,
  Selective,  // of a layer: the attention core, large beside its arithmetic (Korthikanti et al., arXiv:2205.05198, §5)
  Full,       // everything but the block's input (Chen et al., arXiv:1604.06174)
};

// Sizes of what a block keeps for one micro-batch.
struct BlockBytes {
  uint64_t saved = 0;       // from Forward to BackwardInput and BackwardWeight, besides the input activation
  uint64_t recomputed = 0;  // made again by Recompute, for the same two; the forward has it as scratch
  uint64_t between = 0;     // from BackwardInput to BackwardWeight
  uint64_t workspace = 0;   // while one of its functions runs
};

struct Block {
  BlockKind kind;
  int64_t layer = -1;            // which transformer layer; -1 for embedding and head
  std::vector<uint16_t> groups;  // indices of the parameter groups that it reads, at most two; gradients in this order
  std::string name;              // "embedding", "layer 0", "head"
};

struct Model {
  ModelConfig config;
  std::vector<Block> blocks;           // embedding, layers, head: what a stage is a contiguous range of
  std::vector<ParameterGroup> groups;  // canonical order: digests, exports and norms follow it
  uint64_t parameters() const;         // each counted once
};

Model make_model(const ModelConfig&);

// One micro-batch: `batch` sequences of `sequence` tokens each, whose activations, and the parameters that they meet,
// are stored as `dtype`.
struct MicroBatchShape {
  int64_t batch = 0, sequence = 0;
  DType dtype = DType::Float32;
  int64_t tokens() const { return batch * sequence; }
};

BlockBytes block_bytes(const Model&, const Block&, MicroBatchShape, Recompute = Recompute::None);
uint64_t activation_bytes(const Model&, MicroBatchShape);  // what passes between two blocks: [tokens, hidden]
// Multiply-adds count as two; backward is twice this. Attention counts the causal half.
double forward_flops(const Model&, const Block&, MicroBatchShape);
double recompute_flops(const Model&, const Block&, MicroBatchShape, Recompute);

}  // namespace shardpipe
