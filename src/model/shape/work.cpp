#include "model/shape/work.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace shardpipe {
namespace {

bool is_gpt2(const ModelConfig& config) { return config.family == Family::Gpt2; }

// [sequence, head_dim] × [head_dim, sequence], or the other way round, of every head and sequence: the causal half.
Product attention_product(const ModelConfig& config, MicroBatchShape shape, double how_often) {
  return {.count = how_often * static_cast<double>(shape.batch * config.heads) / 2,
          .rows = shape.sequence,
          .columns = shape.sequence,
          .depth = config.hidden / config.heads};
}

// tokens × each weight matrix of the layer.
std::vector<Product> linear_products(const Model& model, const Block& block, MicroBatchShape shape) {
  std::vector<Product> products;
  for (const Tensor& tensor : model.groups[block.groups[0]].tensors)
    if (tensor.shape.size() == 2)
      products.push_back({.rows = shape.tokens(), .columns = tensor.shape[0], .depth = tensor.shape[1]});
  return products;
}

Product head_product(const ModelConfig& config, MicroBatchShape shape) {
  return {.rows = shape.tokens(), .columns = config.vocab_size, .depth = config.hidden};
}

// Bytes of activations whose width, in elements a token, is this.
double activation_bytes_of(MicroBatchShape shape, int64_t width) {
  return static_cast<double>(shape.tokens() * width) * static_cast<double>(bytes_of(shape.dtype));
}

[[noreturn]] void no_kind(const Block& block) {
  throw InvariantError(fmt::format("block '{}' is of no kind", block.name));
}

}  // namespace

double Work::flops() const {
  double sum = 0;
  for (const Product& product : products) sum += product.flops();
  return sum;
}

Work forward_work(const Model& model, const Block& block, MicroBatchShape shape) {
  const ModelConfig& config = model.config;
  const int64_t h = config.hidden, f = config.ffn, rotated = (config.heads + config.kv_heads) * (h / config.heads);
  switch (block.kind) {
    case BlockKind::Embedding:  // reads a row, and of GPT-2 a position; writes their sum
      return {.products = {}, .bytes = activation_bytes_of(shape, is_gpt2(config) ? 3 * h : 2 * h)};
    case BlockKind::Layer: {
      Work work{.products = linear_products(model, block, shape)};
      work.products.push_back(attention_product(config, shape, 2));  // q·kᵀ, probabilities·v
      // Two norms read and write; two residuals are read; the activation function reads one or two and writes one.
      work.bytes = activation_bytes_of(shape, 6 * h + (is_gpt2(config) ? 2 * f : 3 * f + 2 * rotated));
      return work;
    }
    case BlockKind::Head:  // a norm; the logits are read once for the loss
      return {.products = {head_product(config, shape)},
              .bytes = activation_bytes_of(shape, 2 * h + config.vocab_size)};
  }
  no_kind(block);
}

Work backward_input_work(const Model& model, const Block& block, MicroBatchShape shape) {
  const ModelConfig& config = model.config;
  const int64_t h = config.hidden, f = config.ffn, rotated = (config.heads + config.kv_heads) * (h / config.heads);
  switch (block.kind) {
    case BlockKind::Embedding:
      return {};
    case BlockKind::Layer: {
      Work work{.products = linear_products(model, block, shape)};
      for (Product& product : work.products) std::swap(product.columns, product.depth);
      work.products.push_back(attention_product(config, shape, 5));  // the scores again, and dP, dV, dQ, dK
      // Each norm reads the gradient and its input and adds to the residual's; the activation function reads its
      // input and the gradient and writes gradient and value.
      work.bytes = activation_bytes_of(shape, 8 * h + (is_gpt2(config) ? 4 * f : 6 * f + 2 * rotated));
      return work;
    }
    case BlockKind::Head: {  // the logits become their gradient; a norm
      Product product = head_product(config, shape);
      std::swap(product.columns, product.depth);
      return {.products = {product}, .bytes = activation_bytes_of(shape, 4 * h + 2 * config.vocab_size)};
    }
  }
  no_kind(block);
}

Work backward_weight_work(const Model& model, const Block& block, MicroBatchShape shape) {
  const ModelConfig& config = model.config;
  const int64_t h = config.hidden;
  // Of [out, tokens] × [tokens, in].
  const auto turned = [](Product product) {
    return Product{.count = product.count, .rows = product.columns, .columns = product.depth, .depth = product.rows};
  };
  switch (block.kind) {
    case BlockKind::Embedding:  // reads gradients, adds them to rows
      return {.products = {}, .bytes = activation_bytes_of(shape, 3 * h)};
    case BlockKind::Layer: {
      Work work{.products = linear_products(model, block, shape)};
      for (Product& product : work.products) product = turned(product);
      work.bytes = activation_bytes_of(shape, 4 * h);  // the norms' results are made again
      return work;
    }
    case BlockKind::Head:
      return {.products = {turned(head_product(config, shape))}, .bytes = activation_bytes_of(shape, 2 * h)};
  }
  no_kind(block);
}

Work recompute_work(const Model& model, const Block& block, MicroBatchShape shape, Recompute recompute) {
  if (recompute == Recompute::None || block.kind == BlockKind::Embedding) return {};
  if (recompute == Recompute::Selective)
    return block.kind == BlockKind::Layer ? Work{.products = {attention_product(model.config, shape, 2)}} : Work{};
  Work work = forward_work(model, block, shape);
  if (block.kind == BlockKind::Layer) {  // all but its last product, whose result the forward gave away
    const auto last = std::ranges::find_if(work.products, [&](const Product& product) {
      return product.columns == model.config.hidden && product.depth == model.config.ffn;
    });
    check_invariant(last != work.products.end(), "layer '{}' has no product back to its width", block.name);
    work.products.erase(last);
  }
  return work;
}

}  // namespace shardpipe
