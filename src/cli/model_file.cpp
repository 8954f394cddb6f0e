// A model's sizes from the config.json that Hugging Face keeps beside its weights. What would change the mathematics
// and is not supported is refused by name. (Keys: transformers' configuration_gpt2.py and configuration_llama.py, whose
// version 5 moved the rotary settings into rope_parameters.)
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/settings.h"
#include "cli/text_file.h"

namespace shardpipe::cli {
namespace {

using nlohmann::json;

class ModelFile {
 public:
  ModelFile(std::string path, const json& content) : path_(std::move(path)), content_(content) {}

  Settings read() {
    const std::string type = text("model_type", "");
    if (type == "gpt2") {
      read_gpt2();
    } else if (type == "llama") {
      read_llama();
    } else {
      problem("model_type", "gpt2, llama");
    }
    return std::move(settings_);
  }

 private:
  const json* find(const char* key) const {
    const auto found = content_.find(key);
    return found == content_.end() || found->is_null() ? nullptr : &*found;
  }

  // What stands there is not allowed.
  void problem(const std::string& key, std::string_view allowed) {
    const json* found = find(key.c_str());
    std::string shown = found == nullptr ? "none" : found->dump(-1, ' ', false, json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
    settings_.problems.push_back(fmt::format("{}: {}: found {}, allowed: {}", path_, key, shown, allowed));
  }

  std::string text(const char* key, std::string otherwise) const {
    const json* found = find(key);
    return found == nullptr ? otherwise : found->is_string() ? found->get<std::string>() : found->dump();
  }

  void set(std::string_view option, Value value, const std::string& key) {
    settings_.given.push_back({&option_named(option), std::move(value), fmt::format("{}: {}", path_, key)});
  }

  // A size that the file must have; 0 where it has none.
  int64_t size(const char* key, std::string_view option) {
    const json* found = find(key);
    if (found == nullptr || !found->is_number_integer()) {
      problem(key, "a whole number");
      settings_.unreadable.push_back(&option_named(option));
      return 0;
    }
    const auto value = found->get<int64_t>();
    set(option, value, key);
    return value;
  }

  void optional_size(const char* key, std::string_view option, int64_t otherwise) {
    if (find(key) != nullptr)
      size(key, option);
    else if (otherwise != 0)
      set(option, otherwise, key);
  }

  std::optional<double> number(const json* found, const std::string& key) {
    if (found == nullptr || found->is_null()) return std::nullopt;
    if (found->is_number() && std::isfinite(found->get<double>())) return found->get<double>();
    problem(key, "a finite number");
    return std::nullopt;
  }

  void boolean(const char* key, std::string_view option, bool otherwise) {
    const json* found = find(key);
    if (found != nullptr && !found->is_boolean()) return problem(key, "true, false");
    set(option, found == nullptr ? otherwise : found->get<bool>(), key);
  }

  // Other mathematics than ours, unless it has this value (or none).
  void require(const char* key, const json& only) {
    const json* found = find(key);
    if (found != nullptr && *found != only) problem(key, only.dump());
  }

  void read_gpt2() {
    set("model", "gpt2-124m", "model_type");
    size("n_layer", "layers");
    const int64_t hidden = size("n_embd", "hidden");
    size("n_head", "heads");
    size("vocab_size", "vocab-size");
    size("n_positions", "seq-len");
    optional_size("n_inner", "ffn", hidden > 0 && hidden <= INT64_MAX / 4 ? 4 * hidden : 0);
    boolean("tie_word_embeddings", "tied", true);
    set("norm-epsilon", number(find("layer_norm_epsilon"), "layer_norm_epsilon").value_or(1e-5), "layer_norm_epsilon");
    if (const std::string activation = text("activation_function", "gelu_new");
        activation != "gelu_new" && activation != "gelu_pytorch_tanh")
      problem("activation_function", "gelu_new, gelu_pytorch_tanh");
    require("scale_attn_weights", true);
    require("scale_attn_by_inverse_layer_idx", false);
    require("reorder_and_upcast_attn", false);
    require("add_cross_attention", false);
    const double dropout = number(find("resid_pdrop"), "resid_pdrop").value_or(0.1);
    for (const char* key : {"embd_pdrop", "attn_pdrop"})
      if (number(find(key), key).value_or(0.1) != dropout)
        problem(key, fmt::format("{}, as resid_pdrop: one share for all", dropout));
    set("dropout", dropout, "resid_pdrop");
  }

  void read_llama() {
    set("model", "llama-8b", "model_type");
    size("num_hidden_layers", "layers");
    const int64_t hidden = size("hidden_size", "hidden");
    const int64_t heads = size("num_attention_heads", "heads");
    optional_size("num_key_value_heads", "kv-heads", heads);
    size("intermediate_size", "ffn");
    size("vocab_size", "vocab-size");
    size("max_position_embeddings", "seq-len");
    boolean("tie_word_embeddings", "tied", false);
    set("norm-epsilon", number(find("rms_norm_eps"), "rms_norm_eps").value_or(1e-6), "rms_norm_eps");
    require("hidden_act", "silu");
    require("attention_bias", false);
    require("mlp_bias", false);
    require("attention_dropout", 0.0);
    if (heads > 0) require("head_dim", hidden / heads);
    read_rotary();
  }

  void read_rotary() {
    double theta = number(find("rope_theta"), "rope_theta").value_or(10000.0);
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const json* rotary = find(key);
      if (rotary == nullptr) continue;
      if (!rotary->is_object()) {
        problem(key, "an object, null");
        continue;
      }
      const json type = rotary->value("rope_type", rotary->value("type", json("default")));
      if (type != "default") problem(key, "rope_type \"default\": angles that are not stretched");
      if (const auto found = rotary->find("rope_theta"); found != rotary->end())
        theta = number(&*found, key).value_or(theta);
    }
    set("rope-theta", theta, "rope_theta");
  }

  const std::string path_;
  const json& content_;
  Settings settings_;
};

}  // namespace

bool names_model_file(std::string_view model) { return model.ends_with(".json"); }

Settings read_model_file(const std::string& path) {
  constexpr uintmax_t most_mib = 16;
  const std::string content =
      read_text_file(path, fmt::format("--model {}", path), "a readable config.json of Hugging Face", most_mib);
  const json parsed = json::parse(content, nullptr, false);
  if (!parsed.is_object())
    throw InputError(
        fmt::format("--model {}: found text that is no JSON object, allowed: a config.json of Hugging Face", path));
  return ModelFile(path, parsed).read();
}

}  // namespace shardpipe::cli
