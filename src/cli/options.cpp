#include "cli/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>

#include "base/error.h"
#include "base/nearest_name.h"
#include "schedules/schedule.h"

namespace shardpipe::cli {
namespace {

// The four makers below tie a table row to one field of RunConfig through a function that returns a reference to it.
template <typename Field>
using FieldOf = Field& (*)(RunConfig&);

template <typename Field>
Field read(FieldOf<Field> field, const RunConfig& config) {
  RunConfig copy = config;  // so that one accessor serves both set and get; a configuration is small
  return field(copy);
}

// Fields whose type is the value's own: bool, int64_t, double, std::string and the lists.
template <typename Field>
Option plain(std::string group, Kind kind, std::string name, FieldOf<Field> field, std::string help,
             std::string default_text = "") {
  return {.name = std::move(name),
          .opposite = "",
          .group = std::move(group),
          .kind = kind,
          .help = std::move(help),
          .default_text = std::move(default_text),
          .choices = {},
          .set = [field](RunConfig& config, const Value& value) { field(config) = std::get<Field>(value); },
          .get = [field](const RunConfig& config) -> Value { return read(field, config); }};
}

// Enumerations: the i-th choice is the i-th enumerator.
template <typename Enum>
Option choice(std::string group, std::string name, FieldOf<Enum> field, std::vector<std::string> choices,
              std::string help, std::string default_text = "") {
  Option option{.name = std::move(name),
                .opposite = "",
                .group = std::move(group),
                .kind = Kind::Choice,
                .help = std::move(help),
                .default_text = std::move(default_text),
                .choices = choices,
                .set = nullptr,
                .get = nullptr};
  option.set = [field, choices](RunConfig& config, const Value& value) {
    const auto found = std::ranges::find(choices, std::get<std::string>(value));
    field(config) = static_cast<Enum>(found - choices.begin());
  };
  option.get = [field, choices](const RunConfig& config) -> Value {
    return choices[static_cast<size_t>(read(field, config))];
  };
  return option;
}

Option with_opposite(Option option, std::string opposite) {
  option.opposite = std::move(opposite);
  return option;
}

Option not_of_verify(Option option) {
  option.of_verify = false;
  return option;
}

std::vector<Option> make_options() {
  using Strings = std::vector<std::string>;
  using Integers = std::vector<int64_t>;
  using Reals = std::vector<double>;
  const std::string preset = "the preset's";
  std::vector<Option> table;
  const auto add = [&](Option option) { table.push_back(std::move(option)); };

  std::string group = "Model";
  add(plain<std::string>(
      group, Kind::Text, "model", [](RunConfig & c) -> auto& { return c.model.name; },
      fmt::format("a Hugging Face config.json (a name that ends in .json), or a preset: {}",
                  fmt::join(model_presets(), ", ")),
      "none: it must be given"));
  table.back().choices = model_presets();
  table.back().kind = Kind::Choice;
  add(plain<int64_t>(
      group, Kind::Integer, "layers", [](RunConfig & c) -> auto& { return c.model.layers; }, "transformer layers",
      preset));
  add(plain<int64_t>(
      group, Kind::Integer, "hidden", [](RunConfig & c) -> auto& { return c.model.hidden; }, "width of an activation",
      preset));
  add(plain<int64_t>(
      group, Kind::Integer, "heads", [](RunConfig & c) -> auto& { return c.model.heads; },
      "attention heads; must divide --hidden", preset));
  add(plain<int64_t>(
      group, Kind::Integer, "kv-heads", [](RunConfig & c) -> auto& { return c.model.kv_heads; },
      "key and value heads; must divide --heads", "--heads for gpt2, the preset's for llama"));
  add(plain<int64_t>(
      group, Kind::Integer, "ffn", [](RunConfig & c) -> auto& { return c.model.ffn; }, "width of the feed-forward part",
      "the preset's; where --hidden is given: 4 × --hidden for gpt2, and it must be given for llama"));
  add(plain<int64_t>(
      group, Kind::Integer, "vocab-size", [](RunConfig & c) -> auto& { return c.model.vocab_size; },
      "tokens that there are", preset));
  add(plain<int64_t>(
      group, Kind::Integer, "seq-len", [](RunConfig & c) -> auto& { return c.model.seq_len; }, "tokens of a sequence",
      preset));
  add(with_opposite(plain<bool>(
                        group, Kind::Switch, "tied", [](RunConfig & c) -> auto& { return c.model.tied_embeddings; },
                        "the head uses the token embedding", preset),
                    "untied"));

  add(plain<double>(
      group, Kind::Real, "norm-epsilon", [](RunConfig & c) -> auto& { return c.model.norm_epsilon; },
      "added to a variance before its root is taken", preset));
  add(plain<double>(
      group, Kind::Real, "rope-theta", [](RunConfig & c) -> auto& { return c.model.rope_theta; },
      "of llama: base of the rotary angles", preset));
  add(plain<double>(
      group, Kind::Real, "dropout", [](RunConfig & c) -> auto& { return c.model.dropout; },
      "of gpt2: share of the embedding, of attention's probabilities and of both residual branches that a training "
      "step sets to 0"));
  add(not_of_verify(plain<Reals>(
      group, Kind::Reals, "block-cost", [](RunConfig & c) -> auto& { return c.block_cost; },
      "of --model synthetic: milliseconds that a layer's forward, input gradient and weight gradient take, and, where "
      "it is not the forward's, its --recompute",
      "10,10,10")));

  group = "Data";
  add(plain<Strings>(
      group, Kind::Files, "data", [](RunConfig & c) -> auto& { return c.data.data; },
      "files read as one stream, in this order; may be given several times", "none"));
  add(choice<TokenFormat>(
      group, "data-format", [](RunConfig & c) -> auto& { return c.data.data_format; }, {"text", "uint16", "uint32"},
      "text: a token a byte; else little-endian tokens of that width"));
  add(plain<double>(
      group, Kind::Real, "val-fraction", [](RunConfig & c) -> auto& { return c.data.val_fraction; },
      "share of the tokens, from the end, that is held out for evaluation"));

  group = "Layout";
  add(plain<int64_t>(
      group, Kind::Integer, "pp", [](RunConfig & c) -> auto& { return c.layout.pp; }, "pipeline ranks"));
  add(plain<int64_t>(
      group, Kind::Integer, "dp", [](RunConfig & c) -> auto& { return c.layout.dp; },
      "data-parallel replicas of each pipeline rank"));
  add(plain<int64_t>(
      group, Kind::Integer, "replicate", [](RunConfig & c) -> auto& { return c.layout.replicate; },
      "of the --dp replicas: copies of a group that shards (HSDP); must leave groups of 1, 2, 4, …"));
  Option zero{
      .name = "zero",
      .opposite = "",
      .group = group,
      .kind = Kind::Integers,
      .help =
          "ZeRO stage: 0 whole copies, 1 shards optimizer states, 2 gradients too, 3 parameters too; of all pipeline "
          "ranks, or of each",
      .default_text = "",
      .choices = {},
      .set =
          [](RunConfig& c, const Value& value) {  // out of range stays out of range, for problems_of to tell
            const auto stage = [](int64_t number) {
              return static_cast<int>(std::clamp<int64_t>(number, INT32_MIN, INT32_MAX));
            };
            if (const auto* one = std::get_if<int64_t>(&value)) {
              c.layout.zero = stage(*one);
              c.layout.zero_of_ranks.clear();
              return;
            }
            c.layout.zero_of_ranks.clear();
            for (const int64_t number : std::get<Integers>(value)) c.layout.zero_of_ranks.push_back(stage(number));
          },
      .get = [](const RunConfig& c) -> Value {
        if (c.layout.zero_of_ranks.empty()) return int64_t{c.layout.zero};
        return Integers(c.layout.zero_of_ranks.begin(), c.layout.zero_of_ranks.end());
      }};
  add(zero);
  add(plain<std::string>(
      group, Kind::Text, "schedule", [](RunConfig & c) -> auto& { return c.layout.schedule; },
      fmt::format("pipeline schedule: {}; or one of your own, from a file", fmt::join(schedule_names(), ", "))));
  table.back().placeholder_text = "NAME|file:PATH";
  table.back().allowed_text = fmt::format("{}, file:PATH", fmt::join(schedule_names(), ", "));
  add(plain<int64_t>(
      group, Kind::Integer, "chunks", [](RunConfig & c) -> auto& { return c.layout.chunks_per_rank; },
      "stages that a pipeline rank holds, where the schedule leaves the choice", "as the schedule usually has"));
  add(plain<Integers>(
      group, Kind::Stages, "stages", [](RunConfig & c) -> auto& { return c.layout.stages; },
      "blocks (embedding, layers, head) in each stage", "auto: the slowest stage is as fast as it can be"));
  add(plain<int64_t>(
      group, Kind::Integer, "micro-batch-size", [](RunConfig & c) -> auto& { return c.layout.micro_batch_size; },
      "sequences of a micro-batch"));
  add(plain<int64_t>(
      group, Kind::Integer, "global-batch-size", [](RunConfig & c) -> auto& { return c.layout.global_batch_size; },
      "sequences of a step, over all replicas",
      "--micro-batch-size × --dp × --pp: as many micro-batches a rank as stages"));
  add(choice<ReduceEvery>(
      group, "reduce-every", [](RunConfig & c) -> auto& { return c.layout.reduce_every; }, {"micro", "step"},
      "when gradients cross the replicas: after every micro-batch, or once a step",
      "micro for ZeRO 2 and 3, step for 0 and 1"));
  add(choice<DType>(
      group, "reduce-dtype", [](RunConfig & c) -> auto& { return c.layout.reduce_dtype; }, {"fp32", "bf16"},
      "what replicas round their gradients to before these cross; sums are fp32 either way"));
  add(plain<bool>(
      group, Kind::Switch, "reproducible", [](RunConfig & c) -> auto& { return c.layout.reproducible; },
      "gradients are summed exactly: the bits depend on none of --dp, --replicate, --reduce-every and --pp either"));
  Option reshard{.name = "reshard-after-forward",
                 .opposite = "",
                 .group = group,
                 .kind = Kind::YesNos,
                 .help =
                     "ZeRO 3: gather parameters again for the backward (yes), or hold them for the step (no); on all "
                     "pipeline ranks, or on each",
                 .default_text = "",
                 .choices = {},
                 .set =
                     [](RunConfig& c, const Value& value) {
                       c.layout.reshard_of_ranks.clear();
                       if (const auto* one = std::get_if<bool>(&value))
                         c.layout.reshard_after_forward = *one;
                       else
                         c.layout.reshard_of_ranks = std::get<std::vector<bool>>(value);
                     },
                 .get = [](const RunConfig& c) -> Value {
                   if (c.layout.reshard_of_ranks.empty()) return c.layout.reshard_after_forward;
                   return c.layout.reshard_of_ranks;
                 }};
  add(reshard);
  add(choice<DType>(
      group, "precision", [](RunConfig & c) -> auto& { return c.layout.precision; }, {"fp32", "bf16", "fp16"},
      "of activations, their gradients and the parameters that layers read; masters, sums of gradients and optimizer "
      "states are fp32 in each"));
  add(plain<std::string>(
      group, Kind::Text, "recompute", [](RunConfig & c) -> auto& { return c.layout.recompute; },
      "what the backward computes again instead of keeping it: full layers, their attention core (selective), every "
      "N-th layer, or the blocks of a list (0: embedding; such as 1,4-6)"));
  table.back().placeholder_text = "none|full|selective|every:N|blocks:LIST";
  table.back().allowed_text = "none, full, selective, every:N, blocks:LIST";
  add(not_of_verify(plain<std::string>(
      group, Kind::Text, "memory-limit", [](RunConfig & c) -> auto& { return c.memory_limit; },
      "bytes that each rank may hold; a layout that needs more is refused with the nearest ones that fit")));
  table.back().placeholder_text = "BYTES";
  table.back().allowed_text = "none, or bytes such as 2500000000, 2.5GB or 8GiB";
  add(plain<std::string>(
      group, Kind::Text, "offload", [](RunConfig & c) -> auto& { return c.layout.offload; },
      "what is kept outside a rank's memory while nothing works on it: optimizer (its states and fp32 masters), "
      "params, "
      "activations"));
  table.back().placeholder_text = "none|LIST";
  table.back().allowed_text = "none, or some of optimizer, params, activations with commas between them";
  add(plain<std::string>(
      group, Kind::Text, "offload-to", [](RunConfig & c) -> auto& { return c.offload_to; },
      "where that is: memory of the host, or one file a rank in a folder on a disk"));
  table.back().placeholder_text = "host|nvme:DIR";
  table.back().allowed_text = "host, or nvme:DIR with a folder on a disk";
  add(plain<int64_t>(
      group, Kind::Integer, "offload-piece", [](RunConfig & c) -> auto& { return c.layout.offload_piece; },
      "elements of optimizer state that are brought in at once; three such pieces are in memory"));

  group = "Training";
  add(plain<int64_t>(
      group, Kind::Integer, "steps", [](RunConfig & c) -> auto& { return c.steps; }, "optimizer steps"));
  Option seed{.name = "seed",
              .opposite = "",
              .group = group,
              .kind = Kind::Integer,
              .help = "of the starting weights and of the order of the data",
              .default_text = "",
              .choices = {},
              .set = [](RunConfig& c, const Value& value) { c.seed = static_cast<uint64_t>(std::get<int64_t>(value)); },
              .get = [](const RunConfig& c) -> Value { return static_cast<int64_t>(c.seed); }};
  add(seed);
  add(choice<OptimizerKind>(
      group, "optimizer", [](RunConfig & c) -> auto& { return c.optimizer.optimizer; }, {"adamw", "sgd"},
      "rule of the update"));
  add(plain<double>(
      group, Kind::Real, "lr", [](RunConfig & c) -> auto& { return c.optimizer.lr; }, "highest learning rate"));
  add(plain<double>(
      group, Kind::Real, "min-lr", [](RunConfig & c) -> auto& { return c.optimizer.min_lr; },
      "learning rate of the last step", "--lr / 10"));
  add(choice<LrSchedule>(
      group, "lr-schedule", [](RunConfig & c) -> auto& { return c.optimizer.lr_schedule; },
      {"constant", "linear", "cosine"}, "from --lr, after the warm-up, to --min-lr"));
  add(plain<int64_t>(
      group, Kind::Integer, "warmup-steps", [](RunConfig & c) -> auto& { return c.optimizer.warmup_steps; },
      "steps over which the learning rate rises"));
  add(plain<double>(
      group, Kind::Real, "beta1", [](RunConfig & c) -> auto& { return c.optimizer.beta1; },
      "AdamW: decay of the first moment"));
  add(plain<double>(
      group, Kind::Real, "beta2", [](RunConfig & c) -> auto& { return c.optimizer.beta2; },
      "AdamW: decay of the second moment"));
  add(plain<double>(
      group, Kind::Real, "epsilon", [](RunConfig & c) -> auto& { return c.optimizer.epsilon; },
      "AdamW: added to the root of the second moment"));
  add(plain<double>(
      group, Kind::Real, "weight-decay", [](RunConfig & c) -> auto& { return c.optimizer.weight_decay; },
      "of matrices; norms, biases and position embeddings do not decay"));
  add(plain<double>(
      group, Kind::Real, "grad-clip", [](RunConfig & c) -> auto& { return c.optimizer.grad_clip; },
      "largest norm of the whole gradient; 0: no clipping"));
  add(plain<double>(
      group, Kind::Real, "loss-scale", [](RunConfig & c) -> auto& { return c.loss_scale.initial; },
      "fp16: what the loss is first multiplied by, so that small gradients do not vanish"));
  add(plain<double>(
      group, Kind::Real, "loss-scale-growth", [](RunConfig & c) -> auto& { return c.loss_scale.growth; },
      "fp16: factor by which the scale grows"));
  add(plain<int64_t>(
      group, Kind::Integer, "loss-scale-interval", [](RunConfig & c) -> auto& { return c.loss_scale.growth_interval; },
      "fp16: steps without overflow after which it grows"));
  add(plain<double>(
      group, Kind::Real, "loss-scale-backoff", [](RunConfig & c) -> auto& { return c.loss_scale.backoff; },
      "fp16: factor by which it falls when gradients overflow; their step is skipped"));
  add(plain<int64_t>(
      group, Kind::Integer, "loss-scale-hysteresis", [](RunConfig & c) -> auto& { return c.loss_scale.hysteresis; },
      "fp16: overflows until it falls; counted anew when it grows"));
  add(plain<double>(
      group, Kind::Real, "loss-scale-minimum", [](RunConfig & c) -> auto& { return c.loss_scale.minimum; },
      "fp16: it falls no lower"));
  add(choice<OnNan>(
      group, "on-nan", [](RunConfig & c) -> auto& { return c.on_nan; }, {"stop", "continue"},
      "when a loss is not finite: say where that began and stop, or skip the step"));
  add(not_of_verify(plain<int64_t>(
      group, Kind::Integer, "eval-every", [](RunConfig & c) -> auto& { return c.eval_every; },
      "steps between evaluations; 0: only after the last step")));
  add(not_of_verify(plain<int64_t>(
      group, Kind::Integer, "eval-sequences", [](RunConfig & c) -> auto& { return c.eval_sequences; },
      "sequences that an evaluation reads, at most")));

  group = "Output";
  add(not_of_verify(plain<std::string>(
      group, Kind::Text, "out", [](RunConfig & c) -> auto& { return c.out; }, "folder of the run",
      "none: nothing is written")));
  add(with_opposite(not_of_verify(plain<bool>(
                        group, Kind::Switch, "trace", [](RunConfig & c) -> auto& { return c.trace; },
                        "write trace.json (Perfetto) of the last step", "no")),
                    "no-trace"));
  return table;
}

// Ends on its last character, or is no number at all; from_chars knows no locale, no leading space and no plus sign.
template <typename Number>
Number parse_number(std::string_view text, std::string_view allowed_text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = end == text.data() + text.size();
  if (error == std::errc::result_out_of_range && whole)
    throw InputError(fmt::format("found {}, which is out of range; allowed: {}", text, allowed_text));
  if (error != std::errc{} || !whole) throw InputError(fmt::format("found '{}', allowed: {}", text, allowed_text));
  return number;
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '"' || character == '\\')
      result += {'\\', character};
    else if (byte < 0x20 || byte == 0x7F)
      result += fmt::format("\\u{:04X}", byte);
    else
      result += character;
  }
  return result + '"';
}

struct TomlPrinter {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const {
    return fmt::format("{}", value);
  }  // shortest text that reads back to the same bits
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const std::vector<bool>& value) const {
    std::vector<std::string> parts;
    for (const bool part : value) parts.push_back((*this)(part));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
  std::string operator()(const std::vector<int64_t>& value) const {
    return value.empty() ? quoted("auto") : fmt::format("[{}]", fmt::join(value, ", "));
  }
  std::string operator()(const std::vector<double>& value) const { return fmt::format("[{}]", fmt::join(value, ", ")); }
  std::string operator()(const std::vector<std::string>& value) const {
    std::vector<std::string> parts;
    for (const std::string& part : value) parts.push_back(quoted(part));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
};

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> table = make_options();
  return table;
}

const Option& option_named(std::string_view name) {
  const auto found = std::ranges::find(options(), name, &Option::name);
  check_invariant(found != options().end(), "no option is called '{}'", name);
  return *found;
}

std::string allowed(const Option& option) {
  if (!option.allowed_text.empty()) return option.allowed_text;
  switch (option.kind) {
    case Kind::Switch:
      return fmt::format("--{} or --{}, without a value", option.name, option.opposite);
    case Kind::YesNos:
      return "yes, no, or several with commas between them";
    case Kind::Integer:
      return "a whole number";
    case Kind::Integers:
      return "a whole number, or several with commas between them";
    case Kind::Real:
      return "a finite number";
    case Kind::Choice:
      return fmt::format("{}", fmt::join(option.choices, ", "));
    case Kind::Text:
      return "the name of a folder";
    case Kind::Reals:
      return "finite numbers with commas between them";
    case Kind::Stages:
      return "whole numbers with commas between them, or auto";
    case Kind::Files:
      return "names of files, with commas between them";
  }
  throw InvariantError("a kind of option without a rule");
}

std::string placeholder(const Option& option) {
  if (!option.placeholder_text.empty()) return option.placeholder_text;
  switch (option.kind) {
    case Kind::Switch:
      return "";
    case Kind::YesNos:
      return "yes|no[,yes|no]";
    case Kind::Integer:
      return "N";
    case Kind::Integers:
      return "N[,N]";
    case Kind::Real:
      return "X";
    case Kind::Choice:
      return option.choices.size() > 3 ? "NAME" : fmt::format("{}", fmt::join(option.choices, "|"));
    case Kind::Text:
      return "DIR";
    case Kind::Reals:
      return "X,X,X";
    case Kind::Stages:
      return "N,N,N|auto";
    case Kind::Files:
      return "FILE[,FILE]";
  }
  throw InvariantError("a kind of option without a placeholder");
}

Value parse_value(const Option& option, std::string_view text) {
  const std::string allowed_text = allowed(option);
  if (text.empty()) throw InputError(fmt::format("found no value, allowed: {}", allowed_text));
  switch (option.kind) {
    case Kind::Switch:
      throw InputError(fmt::format("found the value '{}', allowed: {}", text, allowed_text));
    case Kind::YesNos: {
      std::vector<bool> answers;
      for (const std::string_view part : split_at_commas(text)) {
        if (part != "yes" && part != "no") throw InputError(fmt::format("found '{}', allowed: {}", part, allowed_text));
        answers.push_back(part == "yes");
      }
      if (answers.size() == 1) return bool{answers.front()};
      return answers;
    }
    case Kind::Integer:
      return parse_number<int64_t>(text, allowed_text);
    case Kind::Integers: {
      std::vector<int64_t> numbers;
      for (const std::string_view part : split_at_commas(text))
        numbers.push_back(parse_number<int64_t>(part, allowed_text));
      if (numbers.size() == 1) return numbers.front();
      return numbers;
    }
    case Kind::Real: {
      const auto number = parse_number<double>(text, allowed_text);
      if (!std::isfinite(number)) throw InputError(fmt::format("found {}, allowed: {}", text, allowed_text));
      return number;
    }
    case Kind::Choice:
      if (std::ranges::find(option.choices, text) == option.choices.end())
        throw InputError(
            fmt::format("found '{}', allowed: {}{}", text, allowed_text, did_you_mean(text, option.choices)));
      return std::string(text);
    case Kind::Text:
      return std::string(text);
    case Kind::Reals: {
      std::vector<double> numbers;
      for (const std::string_view part : split_at_commas(text)) {
        numbers.push_back(parse_number<double>(part, allowed_text));
        if (!std::isfinite(numbers.back())) throw InputError(fmt::format("found {}, allowed: {}", part, allowed_text));
      }
      return numbers;
    }
    case Kind::Stages: {
      std::vector<int64_t> numbers;
      if (text == "auto") return numbers;
      for (const std::string_view part : split_at_commas(text))
        numbers.push_back(parse_number<int64_t>(part, allowed_text));
      return numbers;
    }
    case Kind::Files: {
      std::vector<std::string> files;
      for (const std::string_view part : split_at_commas(text)) files.emplace_back(part);
      return files;
    }
  }
  throw InvariantError("a kind of option without a parser");
}

std::string to_toml(const Value& value) { return std::visit(TomlPrinter{}, value); }

std::string print_config(const RunConfig& config) {
  std::string text;
  std::string_view group;
  for (const Option& option : options()) {
    if (option.group != group) text += fmt::format("{}# {}\n", group.empty() ? "" : "\n", option.group);
    group = option.group;
    text += fmt::format("{} = {}\n", option.name, to_toml(option.get(config)));
  }
  return text;
}

}  // namespace shardpipe::cli
