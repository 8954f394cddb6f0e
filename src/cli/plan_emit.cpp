// One layout in the settings of other trainers: flags of Megatron-LM, a TOML file of torchtitan 0.2, a JSON file of
// DeepSpeed. What they refuse, or do otherwise than planned, is said beside the settings.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "cli/plan_answer.h"
#include "report/json_text.h"

namespace shardpipe::cli {
namespace {

using Notes = std::vector<std::string>;

struct View {
  const ModelConfig& model;
  const Layout& layout;
  bool adamw;
  bool llama() const { return model.family == Family::Llama; }
  bool interleaved() const { return layout.schedule == "interleaved" && layout.chunks_per_rank > 1; }
};

// Recompute and offload are kept apart from the model: whole layers, or their attention alone.
void note_rules(const View& v, Notes& notes, std::string_view who) {
  if (v.layout.recompute.starts_with("every") || v.layout.recompute.starts_with("blocks"))
    notes.push_back(fmt::format("--recompute {}: {} chooses no single layers", v.layout.recompute, who));
}

Emitted megatron(const View& v) {
  const Layout& layout = v.layout;
  std::string text;
  Notes notes;
  const auto flag = [&](std::string_view name, auto value) { text += fmt::format("--{} {}\n", name, value); };
  const auto plain = [&](std::string_view name) { text += fmt::format("--{}\n", name); };
  flag("num-layers", v.model.layers);
  flag("hidden-size", v.model.hidden);
  flag("ffn-hidden-size", v.model.ffn);
  flag("num-attention-heads", v.model.heads);
  if (v.model.kv_heads != v.model.heads) {
    plain("group-query-attention");
    flag("num-query-groups", v.model.kv_heads);
  }
  flag("seq-length", v.model.seq_len);
  flag("max-position-embeddings", v.model.seq_len);
  if (v.llama()) {
    plain("swiglu");
    plain("disable-bias-linear");
    flag("normalization", "RMSNorm");
    flag("position-embedding-type", "rope");
    flag("rotary-base", v.model.rope_theta);
  }
  if (!v.model.tied_embeddings) plain("untie-embeddings-and-output-weights");
  flag("tensor-model-parallel-size", 1);
  flag("pipeline-model-parallel-size", layout.pp);
  flag("micro-batch-size", layout.micro_batch_size);
  flag("global-batch-size", layout.global_batch_size);
  if (layout.precision != DType::Float32) plain(layout.precision == DType::BFloat16 ? "bf16" : "fp16");
  plain("use-flash-attn");
  if (layout.recompute == "full") {
    flag("recompute-granularity", "full");
    flag("recompute-method", "uniform");
    flag("recompute-num-layers", 1);
  } else if (layout.recompute == "selective") {
    flag("recompute-granularity", "selective");
  }
  note_rules(v, notes, "Megatron-LM");

  if (v.interleaved()) {
    flag("num-virtual-stages-per-pipeline-rank", layout.chunks_per_rank);
    if (layout.micro_batches() % layout.pp != 0)
      notes.push_back(
          fmt::format("interleaved: Megatron-LM takes micro-batches that are a multiple of pp; here {} and {}",
                      layout.micro_batches(), layout.pp));
  } else if (layout.pp > 1 && layout.schedule != "1f1b") {
    notes.push_back(fmt::format("--schedule {}: Megatron-LM has 1F1B and interleaved 1F1B; these settings run 1F1B",
                                layout.schedule));
  }
  if (layout.pp > 1 && v.model.layers % (layout.pp * std::max<int64_t>(1, layout.chunks_per_rank)) != 0)
    notes.push_back(
        fmt::format("{} layers: Megatron-LM gives each of {} stages as many; here --pipeline-model-parallel-"
                    "layout has to say how many",
                    v.model.layers, layout.chunks()));
  if (layout.zero == 0) {
    if (layout.dp > 1) plain("overlap-grad-reduce");
  } else {
    plain("use-distributed-optimizer");
    plain("overlap-grad-reduce");
    plain("overlap-param-gather");
    if (layout.replicate > 1) flag("num-distributed-optimizer-instances", layout.replicate);
  }
  if (layout.zero >= 2) {
    plain("use-megatron-fsdp");
    flag("data-parallel-sharding-strategy", layout.zero == 2 ? "optim_grads" : "optim_grads_params");
  }
  const Offload offload = offload_of(layout.offload);
  if (offload.optimizer) {
    plain("optimizer-cpu-offload");
    flag("optimizer-offload-fraction", "1.0");
  }
  if (offload.parameters || offload.activations)
    notes.push_back(
        fmt::format("--offload {}: these settings keep the optimizer alone off the device", layout.offload));
  if (!v.adamw) flag("optimizer", "sgd");
  return {text, notes};
}

// Names of torch.distributed.pipelining, which torchtitan takes.
std::string_view torch_schedule(const Layout& layout) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> names{{{"gpipe", "GPipe"},
                                                                                {"1f1b", "1F1B"},
                                                                                {"interleaved", "Interleaved1F1B"},
                                                                                {"looped-bfs", "LoopedBFS"},
                                                                                {"zb-v", "ZBVZeroBubble"},
                                                                                {"dualpipe-v", "DualPipeV"}}};
  const auto* found = std::ranges::find(names, layout.schedule, [](const auto& name) { return name.first; });
  return found == names.end() ? "" : found->second;
}

Emitted torchtitan(const View& v) {
  const Layout& layout = v.layout;
  Notes notes;
  if (!v.llama()) notes.emplace_back("--model: torchtitan has no GPT-2; the settings are those of the layout alone");
  std::string text = "[training]\n";
  const auto key = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{} = {}\n", name, value);
  };
  const auto number = [](int64_t n) { return fmt::format("{}", n); };
  const auto quoted = [](std::string_view word) { return fmt::format("\"{}\"", word); };
  // With a pipeline its micro-batches are cut out of the local batch; without one, the local batch is the micro-batch
  // and gradients accumulate up to the global batch.
  key("local_batch_size", number(layout.pp > 1 ? layout.global_batch_size / layout.dp : layout.micro_batch_size));
  key("global_batch_size", number(layout.global_batch_size));
  key("seq_len", number(v.model.seq_len));
  key("mixed_precision_param", quoted(layout.precision == DType::Float32 ? "float32" : "bfloat16"));
  key("mixed_precision_reduce", quoted("float32"));
  if (layout.precision == DType::Float16)
    notes.emplace_back("--precision fp16: torchtitan has no loss scaling; the settings say bfloat16");
  const Offload offload = offload_of(layout.offload);
  if (offload.optimizer || offload.parameters) key("enable_cpu_offload", "true");
  if (offload.optimizer != offload.parameters || offload.activations)
    notes.push_back(
        fmt::format("--offload {}: torchtitan offloads parameters, gradients and optimizer together", layout.offload));

  text += "\n[parallelism]\n";
  const bool shards = layout.zero > 0;
  key("data_parallel_replicate_degree", number(shards ? layout.replicate : layout.dp));
  key("data_parallel_shard_degree", number(shards ? layout.shard_group() : 1));
  if (shards)
    key("fsdp_reshard_after_forward", quoted(layout.zero == 3 && layout.reshard_after_forward ? "always" : "never"));
  if (layout.zero == 1 || layout.zero == 2)
    notes.push_back(fmt::format(
        "--zero {}: FSDP2 also shards parameters between steps; kept whole within one, it comes nearest", layout.zero));
  key("tensor_parallel_degree", "1");
  key("pipeline_parallel_degree", number(layout.pp));
  if (layout.pp > 1) {
    const std::string_view name = torch_schedule(layout);
    if (!name.empty()) {
      key("pipeline_parallel_schedule", quoted(name));
    } else {
      key("pipeline_parallel_schedule_csv", quoted(layout.schedule + ".csv"));
      notes.push_back(fmt::format(
          "--schedule {}: PyTorch has none of that name, but reads it: shardpipe show --schedule {} --pp {} "
          "--micro-batches {} --chunks {} --out {}.csv",
          layout.schedule, layout.schedule, layout.pp, layout.micro_batches(), layout.chunks_per_rank,
          layout.schedule));
    }
    key("pipeline_parallel_microbatch_size", number(layout.micro_batch_size));
  }
  text += "\n[activation_checkpoint]\n";
  key("mode", quoted(layout.recompute == "full" || layout.recompute == "selective" ? layout.recompute : "none"));
  note_rules(v, notes, "torchtitan");
  if (!v.adamw) notes.emplace_back("--optimizer sgd: torchtitan has Adam and AdamW");
  return {text, notes};
}

Emitted deepspeed(const View& v) {
  const Layout& layout = v.layout;
  Notes notes;
  nlohmann::ordered_json zero{{"stage", layout.zero}};
  const Offload offload = offload_of(layout.offload);
  if (offload.optimizer) zero["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
  if (offload.parameters) zero["offload_param"] = {{"device", "cpu"}, {"pin_memory", true}};
  if (offload.activations)
    notes.push_back(fmt::format("--offload {}: activations stay, unless its checkpointing moves them", layout.offload));
  if (offload.parameters && layout.zero < 3)
    notes.emplace_back("--offload params: DeepSpeed takes it with stage 3 alone");
  if (layout.replicate > 1 && layout.zero == 3) {
    zero["mics_shard_size"] = layout.shard_group();
  } else if (layout.replicate > 1) {
    notes.push_back(fmt::format("--replicate {}: DeepSpeed shards over all replicas below stage 3", layout.replicate));
  }
  nlohmann::ordered_json json{{"train_batch_size", layout.global_batch_size},
                              {"train_micro_batch_size_per_gpu", layout.micro_batch_size},
                              {"gradient_accumulation_steps", layout.micro_batches()},
                              {"zero_optimization", zero}};
  if (layout.precision == DType::BFloat16) json["bf16"] = {{"enabled", true}};
  if (layout.precision == DType::Float16) json["fp16"] = {{"enabled", true}};
  if (layout.pp > 1) {
    notes.push_back(fmt::format("a pipeline is no key of this file: PipelineModule(..., num_stages={}{})", layout.pp,
                                layout.recompute == "full" ? ", activation_checkpoint_interval=1" : ""));
    if (layout.zero >= 2)
      notes.push_back(fmt::format("--zero {}: DeepSpeed refuses it beside a pipeline", layout.zero));
    if (layout.schedule != "1f1b")
      notes.push_back(fmt::format("--schedule {}: DeepSpeed's pipeline has 1F1B alone", layout.schedule));
  } else if (layout.recompute == "full") {
    notes.emplace_back("--recompute full: no key of this file: the model calls deepspeed.checkpointing, or torch's");
  }
  if (layout.recompute == "selective")
    notes.emplace_back(
        "--recompute selective: no key of this file; a fused attention that keeps no scores comes to the same");
  note_rules(v, notes, "DeepSpeed");
  if (!v.adamw) notes.emplace_back("--optimizer sgd: to be handed to deepspeed.initialize; it is none of its own");
  return {json_text(json, 2) + "\n", notes};
}

}  // namespace

std::vector<std::string> frameworks() { return {"deepspeed", "megatron", "torchtitan"}; }

Emitted emit(const PlanQuestion& question, const Layout& layout, std::string_view framework) {
  const View view{question.config.model, layout, question.config.optimizer.optimizer == OptimizerKind::AdamW};
  if (framework == "megatron") return megatron(view);
  if (framework == "torchtitan") return torchtitan(view);
  check_invariant(framework == "deepspeed", "settings for '{}'", framework);
  return deepspeed(view);
}

}  // namespace shardpipe::cli
