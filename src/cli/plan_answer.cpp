#include "cli/plan_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "program/memory.h"
#include "program/traffic.h"
#include "report/json_text.h"
#include "report/picture.h"
#include "report/table.h"
#include "train/step_picture.h"

namespace shardpipe::cli {
namespace {

std::string percent_of(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string schedule_words(const Layout& layout) {
  if (layout.pp == 1) return "-";
  const Generator& generator = *find_generator(layout.schedule);
  return generator.fewest_chunks == generator.most_chunks
             ? layout.schedule
             : fmt::format("{} × {}", layout.schedule, layout.chunks_per_rank);
}

std::string zero_words(const Layout& layout) {
  return layout.zero >= 2 && layout.reduce_every != default_reduce_every(layout.zero)
             ? fmt::format("{}, once a step", layout.zero)
             : fmt::format("{}", layout.zero);
}

// What a faster layout would have to change: the largest share of a step, and after arithmetic the next that counts.
std::string bound_of(const PricedLayout& priced) {
  std::vector<std::pair<double, std::string_view>> shares{{priced.arithmetic, "arithmetic"},
                                                          {priced.exposed, "communication"},
                                                          {priced.exposed_store, "offload"},
                                                          {priced.idle, "bubble"}};
  std::ranges::stable_sort(shares, std::ranges::greater{}, &std::pair<double, std::string_view>::first);
  constexpr double counts = 0.1;
  const bool another = shares[0].second == "arithmetic" && shares[1].first >= counts;
  return another ? fmt::format("arithmetic, then {}", shares[1].second) : std::string(shares[0].second);
}

using Rows = std::vector<PricedLayout>;

struct Column {
  std::string header;
  std::string (*cell)(const PricedLayout&);
  bool (*needed)(const PricedLayout&) = nullptr;  // by any row; null: always there
};

const std::vector<Column>& columns() {
  static const std::vector<Column> all{
      {"pp", [](const PricedLayout& p) { return fmt::format("{}", p.layout.pp); }},
      {"dp", [](const PricedLayout& p) { return fmt::format("{}", p.layout.dp); }},
      {"copies", [](const PricedLayout& p) { return fmt::format("{}", p.layout.replicate); },
       [](const PricedLayout& p) { return p.layout.replicate > 1; }},
      {"ZeRO", [](const PricedLayout& p) { return zero_words(p.layout); }},
      {"schedule", [](const PricedLayout& p) { return schedule_words(p.layout); }},
      {"micro-batch", [](const PricedLayout& p) { return fmt::format("{}", p.layout.micro_batch_size); }},
      {"recompute", [](const PricedLayout& p) { return p.layout.recompute; }},
      {"offload", [](const PricedLayout& p) { return p.layout.offload; },
       [](const PricedLayout& p) { return p.layout.offload != "none"; }},
      {"step", [](const PricedLayout& p) { return fmt::format("{:.4g} s", p.step_seconds); }},
      {"tokens/s", [](const PricedLayout& p) { return human_count(p.tokens_per_second); }},
      {"MFU", [](const PricedLayout& p) { return percent_of(p.utilisation); }},
      {"bubble", [](const PricedLayout& p) { return percent_of(p.idle); }},
      {"exposed", [](const PricedLayout& p) { return percent_of(p.exposed); }},
      {"offload shows", [](const PricedLayout& p) { return percent_of(p.exposed_store); },
       [](const PricedLayout& p) { return p.layout.offload != "none"; }},
      {"arena", [](const PricedLayout& p) { return human_bytes(p.peak_bytes); }},
      {"bound by", [](const PricedLayout& p) { return bound_of(p); }}};
  return all;
}

Table rows_of(const Rows& rows) {
  Table table{.header = {""}, .rows = std::vector<std::vector<std::string>>(rows.size())};
  for (size_t i = 0; i < rows.size(); ++i) table.rows[i].push_back(fmt::format("{}", i + 1));
  for (const Column& column : columns()) {
    if (column.needed != nullptr && std::ranges::none_of(rows, column.needed)) continue;
    table.header.push_back(column.header);
    for (size_t i = 0; i < rows.size(); ++i) table.rows[i].push_back(column.cell(rows[i]));
  }
  return table;
}

nlohmann::ordered_json json_of_row(const PlanQuestion& question, const PricedLayout& priced) {
  const Layout& layout = priced.layout;
  return {{"pp", layout.pp},
          {"dp", layout.dp},
          {"replicate", layout.replicate},
          {"zero", layout.zero},
          {"reduce_every", layout.reduce_every == ReduceEvery::Micro ? "micro" : "step"},
          {"schedule", layout.schedule},
          {"chunks", layout.chunks_per_rank},
          {"micro_batch_size", layout.micro_batch_size},
          {"global_batch_size", layout.global_batch_size},
          {"recompute", layout.recompute},
          {"offload", layout.offload},
          {"step_seconds", priced.step_seconds},
          {"tokens_per_second", priced.tokens_per_second},
          {"mfu", priced.utilisation},
          {"arithmetic", priced.arithmetic},
          {"bubble", priced.idle},
          {"exposed_communication", priced.exposed},
          {"exposed_offload", priced.exposed_store},
          {"peak_bytes", priced.peak_bytes},
          {"bound_by", bound_of(priced)},
          {"train", train_command_of(question, layout)}};
}

// "12.3 days", "5.1 hours"
std::string long_time(double seconds) {
  constexpr double hour = 3600, day = 24 * hour, year = 365.25 * day;
  return seconds < hour       ? fmt::format("{:.3g} minutes", seconds / 60)
         : seconds < 2 * day  ? fmt::format("{:.3g} hours", seconds / hour)
         : seconds < 2 * year ? fmt::format("{:.3g} days", seconds / day)
                              : fmt::format("{:.3g} years", seconds / year);
}

}  // namespace

std::string train_command_of(const PlanQuestion& question, const Layout& layout) {
  std::string text =
      fmt::format("shardpipe train {} --data FILE --pp {} --dp {}", question.model_flags, layout.pp, layout.dp);
  const auto add = [&](bool needed, const std::string& flag) {
    if (needed) text += " " + flag;
  };
  add(layout.replicate > 1, fmt::format("--replicate {}", layout.replicate));
  add(layout.zero > 0, fmt::format("--zero {}", layout.zero));
  add(layout.reduce_every != default_reduce_every(layout.zero),
      fmt::format("--reduce-every {}", layout.reduce_every == ReduceEvery::Micro ? "micro" : "step"));
  add(layout.schedule != "1f1b", "--schedule " + layout.schedule);
  add(layout.chunks_per_rank != find_generator(layout.schedule)->usual_chunks,
      fmt::format("--chunks {}", layout.chunks_per_rank));
  text +=
      fmt::format(" --micro-batch-size {} --global-batch-size {}", layout.micro_batch_size, layout.global_batch_size);
  add(layout.precision != DType::Float32, fmt::format("--precision {}", to_string(layout.precision)));
  add(layout.recompute != "none", "--recompute " + layout.recompute);
  add(layout.offload != "none", "--offload " + layout.offload);
  add(layout.reduce_dtype != DType::Float32, fmt::format("--reduce-dtype {}", to_string(layout.reduce_dtype)));
  add(question.config.optimizer.optimizer == OptimizerKind::Sgd, "--optimizer sgd");
  return text;
}

std::string table_of(const PlanQuestion& question, const PlanResult& result) {
  const PlanRequest& request = question.request;
  const Cluster& cluster = request.cluster;
  std::string text = fmt::format(
      "{}: {} parameters. {} sequences of {} tokens a step, {}. {} × {}, {} to a node, {} between nodes; arenas of up "
      "to {}.\n\n",
      question.model_flags.substr(std::string_view("--model ").size()),
      human_count(static_cast<double>(request.model->parameters())), request.global_batch_size,
      request.model->config.seq_len, to_string(request.precision), request.devices, cluster.device.name,
      cluster.devices_in_node, cluster.between_name, human_bytes(request.memory_limit));
  text += to_text(rows_of(result.best));
  text += fmt::format(
      "\nOf {} combinations {} are far too large. {} were compiled: their arenas are exact, their times simulated "
      "with\n"
      "the figures of {}. bubble and exposed are shares of the step of the rank that computes\n"
      "longest: waiting or updating, and communicating with nothing to compute beside it.\n",
      result.combinations, result.sketched_too_large, result.compiled, cluster.device.name);
  return text;
}

std::string advice_on(const PlanQuestion& question, const PlanResult& result) {
  std::string text;
  const PlanRequest& request = question.request;
  const PricedLayout& best = result.best.front();
  const auto alone = std::ranges::find_if(result.best, [](const PricedLayout& p) { return p.layout.pp == 1; });
  const auto plain = std::ranges::find_if(result.best, [](const PricedLayout& p) {
    return p.layout.pp == 1 && p.layout.zero == 0 && p.layout.replicate == 1;
  });
  constexpr double hardly_slower = 1.05;
  const auto slower = [&](const PricedLayout& p) { return 100 * (p.step_seconds / best.step_seconds - 1); };
  const auto row = [&](const auto& found) { return found - result.best.begin() + 1; };
  if (request.devices == 1) {
  } else if (plain != result.best.end() && plain->step_seconds < hardly_slower * best.step_seconds) {
    text +=
        fmt::format("A whole copy fits each device: row {}, plain data parallelism (DDP), is the simplest and {}.\n",
                    row(plain), row(plain) == 1 ? "the fastest" : fmt::format("takes {:.1f} % longer", slower(*plain)));
  } else if (alone != result.best.end() && alone->step_seconds < hardly_slower * best.step_seconds) {
    text += fmt::format("Row {} needs no pipeline: ZeRO alone is simpler, and {}.\n", row(alone),
                        row(alone) == 1 ? "the fastest" : fmt::format("takes {:.1f} % longer", slower(*alone)));
  }

  // Hoffmann et al. 2022, arXiv:2203.15556: about 20 tokens a parameter are worth their arithmetic.
  constexpr double worth_a_parameter = 20;
  const auto parameters = static_cast<double>(request.model->parameters());
  const double tokens = question.tokens > 0 ? question.tokens : worth_a_parameter * parameters;
  const std::string time = long_time(tokens / best.tokens_per_second);
  if (question.tokens == 0) {
    text += fmt::format("20 tokens a parameter (Hoffmann et al., arXiv:2203.15556), {}, take row 1 {}.\n",
                        human_count(tokens), time);
  } else {
    text += fmt::format("{} tokens take row 1 {}.\n", human_count(tokens), time);
    if (tokens < worth_a_parameter / 2 * parameters)
      text += fmt::format(
          "They are {:.2g} a parameter, far below the 20 that Hoffmann et al. (arXiv:2203.15556) found worth their\n"
          "arithmetic: a model of {} parameters would learn more from as much of it.\n",
          tokens / parameters, human_count(std::sqrt(tokens * parameters / worth_a_parameter)));
  }
  return text;
}

std::string json_of(const PlanQuestion& question, const PlanResult& result) {
  nlohmann::ordered_json json{{"devices", question.request.devices},
                              {"device", question.request.cluster.device.name},
                              {"devices_in_node", question.request.cluster.devices_in_node},
                              {"between_nodes", question.request.cluster.between_name},
                              {"memory_limit", question.request.memory_limit},
                              {"parameters", question.request.model->parameters()},
                              {"combinations", result.combinations},
                              {"compiled", result.compiled},
                              {"layouts", nlohmann::ordered_json::array()}};
  for (const PricedLayout& priced : result.best) json["layouts"].push_back(json_of_row(question, priced));
  return json_text(json, 2) + "\n";
}

std::string explained(const PlanQuestion& question, const PricedLayout& priced, int64_t row, int terminal_columns,
                      bool color) {
  const SimulatedStep step = simulate_step(question.request, priced.layout);
  const Layout& layout = priced.layout;
  const auto dp = static_cast<uint64_t>(layout.dp), replicate = static_cast<uint64_t>(layout.replicate);
  const StepFigures figures = step_figures(step.program, step.timelines);
  Table bytes{
      .header = {"pipeline rank", "parameters", "gathered", "gradients", "optimizer", "activations", "other", "arena"},
      .rows = {}};
  Table seconds{.header = {"pipeline rank", "computes", "exposed", "idle, update", "sent", "all-gather",
                           "reduce-scatter", "all-reduce"},
                .rows = {}};
  for (uint16_t r = 0; r < step.program.by_pipeline_rank.size(); ++r) {
    const RankMemory held = memory(step.program.by_pipeline_rank[r]);
    const Traffic wire = traffic(step.program, r, dp, replicate);
    const RankFigures& own = figures.ranks[r];
    const double idle =
        std::max(0.0, figures.step_seconds - own.compute_seconds - own.exposed_seconds - own.exposed_store_seconds);
    bytes.rows.push_back({fmt::format("{}", r), human_bytes(held.parameters), human_bytes(held.gathered),
                          human_bytes(held.gradients + held.micro_batch_gradients), human_bytes(held.optimizer),
                          human_bytes(held.activations),
                          human_bytes(held.staging + held.workspace + held.inputs + held.scalars),
                          human_bytes(held.arena)});
    seconds.rows.push_back({fmt::format("{}", r), fmt::format("{:.4g} s", own.compute_seconds),
                            fmt::format("{:.4g} s", own.exposed_seconds), fmt::format("{:.4g} s", idle),
                            human_bytes(wire.send), human_bytes(wire.all_gather), human_bytes(wire.reduce_scatter),
                            human_bytes(wire.all_reduce + wire.tied)});
  }
  std::string text = fmt::format(
      "\nRow {}: {:.4g} s a step, bound by {}\n\nPeak bytes of each kind, and the arena\n{}\n"
      "Where a step's time goes, and what each rank sends\n{}\n",
      row, figures.step_seconds, bound_of(priced), to_text(bytes), to_text(seconds));
  constexpr size_t most_drawn = 20'000;
  size_t actions = 0;
  for (const RankProgram& rank : step.program.by_pipeline_rank) actions += rank.actions.size();
  if (actions <= most_drawn) {
    const Picture picture = picture_of(step.program, step.shape.first_block, step.timelines, layout.schedule);
    text += to_text({&picture, 1}, {.columns = terminal_columns, .color = color}) + "\n";
  } else if (layout.pp > 1) {
    text += fmt::format(
        "The step has {} actions, too many to draw here; its schedule:\n  shardpipe show --schedule {} --pp {} "
        "--micro-batches {} --chunks {}\n\n",
        actions, layout.schedule, layout.pp, layout.micro_batches(), layout.chunks_per_rank);
  }
  return text + fmt::format("To train so\n  {}\n", train_command_of(question, layout));
}

}  // namespace shardpipe::cli
