// Small runs that tests start in one line: a model like case T0 (vocabulary 65, window 16, width 32, 4 layers, 4
// heads), tokens from the seed.
#pragma once
#include "layout/layout.h"
#include "train/samples.h"
#include "train/trainer.h"

namespace shardpipe {

inline ModelConfig tiny_gpt2() {
  return {.name = "gpt2-test",
          .family = Family::Gpt2,
          .layers = 4,
          .hidden = 32,
          .heads = 4,
          .kv_heads = 4,
          .ffn = 128,
          .vocab_size = 65,
          .seq_len = 16,
          .tied_embeddings = true};
}
inline ModelConfig tiny_llama() {
  return {.name = "llama-test",
          .family = Family::Llama,
          .layers = 4,
          .hidden = 32,
          .heads = 4,
          .kv_heads = 2,
          .ffn = 80,
          .vocab_size = 65,
          .seq_len = 16,
          .tied_embeddings = false};
}

// 5 steps at a learning rate at which weights move, with a clip that binds.
inline RunConfig tiny_run(const ModelConfig& model, const Layout& layout) {
  RunConfig config;
  config.model = model;
  config.layout = layout;
  config.steps = 5;
  config.seed = 7;
  config.optimizer.lr = 1e-2;
  config.optimizer.min_lr = 1e-3;
  config.optimizer.warmup_steps = 2;
  config.optimizer.grad_clip = 0.5;
  return config;
}

inline Layout tiny_layout(int64_t pp, int64_t dp, int zero, int64_t micro_batches, ReduceEvery reduce_every,
                          std::string schedule = "1f1b") {
  Layout layout;
  layout.pp = pp;
  layout.dp = dp;
  layout.zero = zero;
  layout.schedule = std::move(schedule);
  layout.micro_batch_size = 1;
  layout.global_batch_size = dp * micro_batches;
  layout.reduce_every = reduce_every;
  return layout;
}

inline TrainResult run_tiny(const RunConfig& config, const TrainHooks& hooks = {}) {
  const Model model = make_model(config.model);
  const Step step = make_step(model, config.layout, optimizer_states_per_element(config.optimizer.optimizer));
  return run_training(config, step,
                      {.train = random_samples(config.seed, config.model.vocab_size), .held_out = nullptr}, hooks);
}

}  // namespace shardpipe
