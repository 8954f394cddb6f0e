#include "train/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "program/memory.h"
#include "report/table.h"
#include "train/trainer.h"

namespace shardpipe {
namespace {

// One step away from a layout: false where it is there already.
struct Change {
  std::string flag;
  std::function<bool(Layout&)> apply;
};

template <typename Field>
Change set(std::string flag, Field Layout::*field, Field value) {
  return {std::move(flag), [=](Layout& layout) { return std::exchange(layout.*field, value) != value; }};
}

// On the same ranks; from what costs least to what changes most.
std::vector<Change> changes_of(const Layout& layout, const Model& model) {
  const std::string all_blocks = fmt::format("blocks:1-{}", model.blocks.size() - 1);  // the head's logits too
  std::vector<Change> changes{
      set<std::string>("--recompute selective", &Layout::recompute, "selective"),
      set<std::string>("--recompute full", &Layout::recompute, "full"),
      set<std::string>("--recompute " + all_blocks, &Layout::recompute, all_blocks),
  };
  for (int zero = layout.highest_zero() + 1; layout.dp > 1 && zero <= 3; ++zero)
    changes.push_back({fmt::format("--zero {}", zero), [zero](Layout& l) {
                         l.reduce_every = default_reduce_every(zero);
                         l.zero_of_ranks.clear();
                         return std::exchange(l.zero, zero) != zero;
                       }});
  for (const char* offload : {"optimizer", "optimizer,params", "optimizer,params,activations"})
    changes.push_back(set<std::string>(fmt::format("--offload {}", offload), &Layout::offload, offload));
  if (layout.schedule != "1f1b" && !layout.own_schedule)
    changes.push_back({"--schedule 1f1b", [](Layout& l) {
                         l.chunks_per_rank = 1;
                         l.stages.clear();
                         return std::exchange(l.schedule, "1f1b") != "1f1b";
                       }});
  for (int64_t size = layout.micro_batch_size / 2; size >= 1 && !layout.own_schedule; size /= 2)
    if (layout.micro_batch_size % size == 0)
      changes.push_back(set<int64_t>(fmt::format("--micro-batch-size {}", size), &Layout::micro_batch_size, size));
  changes.push_back(set<DType>("--precision bf16", &Layout::precision, DType::BFloat16));
  return changes;
}

// On more ranks.
std::vector<Change> larger_layouts(const Layout& layout) {
  std::vector<Change> changes;
  for (const int64_t times : {2, 4, 8})
    if (!layout.own_schedule && layout.zero_of_ranks.empty())
      changes.push_back({fmt::format("--pp {}", layout.pp * times), [times](Layout& l) {
                           l.pp *= times;
                           l.stages.clear();
                           return true;
                         }});
  for (const int64_t times : {2, 4, 8})
    if (layout.highest_zero() > 0)
      changes.push_back({fmt::format("--dp {}", layout.dp * times), [times](Layout& l) {
                           l.dp *= times;
                           return true;
                         }});
  return changes;
}

class Search {
 public:
  Search(const RunConfig& config, uint64_t limit, const Model& model) : config_(config), limit_(limit), model_(model) {}

  // The layouts that fit with the fewest changes, at most three; first on the same ranks, then with one more change to
  // their number.
  std::vector<std::string> nearest() {
    const std::vector<Change> same = changes_of(config_.layout, model_), more = larger_layouts(config_.layout);
    for (size_t count = 1; count <= 3 && found_.empty(); ++count) extend(config_.layout, same, 0, count, "");
    for (const Change& change : more) {
      if (found_.size() >= most_) break;
      if (!found_.empty() && found_of_same_ranks_) break;
      Layout layout = config_.layout;
      if (change.apply(layout)) try_layout(layout, change.flag);
    }
    for (const Change& change : more) {
      if (!found_.empty()) break;
      Layout layout = config_.layout;
      if (change.apply(layout)) extend(layout, same, 0, 2, change.flag);
    }
    return found_;
  }

 private:
  // All choices of `count` of the changes from `first` on.
  void extend(const Layout& layout, const std::vector<Change>& changes, size_t first, size_t count,
              const std::string& flags) {
    if (found_.size() >= most_) return;
    if (count == 0) {
      const size_t before = found_.size();
      try_layout(layout, flags);
      found_of_same_ranks_ = found_of_same_ranks_ || found_.size() > before;
      return;
    }
    for (size_t i = first; i < changes.size(); ++i) {
      Layout changed = layout;
      const std::string name = changes[i].flag.substr(0, changes[i].flag.find(' '));
      if (flags.find(name) != std::string::npos || !changes[i].apply(changed)) continue;  // one value a flag
      extend(changed, changes, i + 1, count - 1, flags + (flags.empty() ? "" : " ") + changes[i].flag);
    }
  }

  void try_layout(const Layout& layout, const std::string& flags) {
    if (found_.size() >= most_ || !problems_of(layout, model_).empty()) return;
    const Step step = make_step(model_, layout, optimizer_states_per_element(config_.optimizer.optimizer));
    if (const uint64_t arena = largest_arena(step); arena <= limit_)
      found_.push_back(fmt::format("{} ({})", flags, human_bytes(arena)));
  }

  static constexpr size_t most_ = 3;
  const RunConfig& config_;
  uint64_t limit_;
  const Model& model_;
  std::vector<std::string> found_;
  bool found_of_same_ranks_ = false;
};

// "optimizer 1.2 GiB, activations 960 MiB": the three largest.
std::string largest_parts(const RankMemory& held) {
  std::vector<std::pair<uint64_t, std::string_view>> parts{{held.parameters, "parameters"},
                                                           {held.gathered, "gathered parameters"},
                                                           {held.gradients, "gradients"},
                                                           {held.micro_batch_gradients, "gradients in reduction"},
                                                           {held.optimizer, "optimizer states"},
                                                           {held.activations, "activations"},
                                                           {held.workspace, "workspace"},
                                                           {held.staging, "copies of what is offloaded"},
                                                           {held.inputs, "tokens"}};
  std::ranges::stable_sort(parts, std::ranges::greater{}, &std::pair<uint64_t, std::string_view>::first);
  std::vector<std::string> words;
  for (size_t i = 0; i < 3; ++i) words.push_back(fmt::format("{} {}", parts[i].second, human_bytes(parts[i].first)));
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

std::optional<uint64_t> bytes_in(std::string_view text) {
  if (text == "none") return std::numeric_limits<uint64_t>::max();
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !(number > 0)) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (!unit.empty() && unit.back() == 'B') unit.remove_suffix(1);
  const bool binary = !unit.empty() && unit.back() == 'i';
  if (binary) unit.remove_suffix(1);
  double factor = 1;
  if (!unit.empty()) {
    const size_t power = std::string_view("kMGT").find(unit == "K" ? 'k' : unit.front());
    if (power == std::string_view::npos || unit.size() > 1) return std::nullopt;
    factor = std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  } else if (binary) {
    return std::nullopt;
  }
  const double bytes = std::floor(number * factor);
  if (bytes < 1 || bytes >= 0x1p63) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

uint64_t largest_arena(const Step& step) {
  uint64_t largest = 0;
  for (size_t r = 0; r < step.training.by_pipeline_rank.size(); ++r)
    largest = std::max(
        {largest, step.training.by_pipeline_rank[r].arena_bytes, step.evaluation.by_pipeline_rank[r].arena_bytes});
  return largest;
}

void require_memory_limit(const RunConfig& config, const Step& step) {
  const std::optional<uint64_t> limit = bytes_in(config.memory_limit);
  check_invariant(limit.has_value(), "memory limit '{}'", config.memory_limit);
  size_t fullest = 0;
  for (size_t r = 0; r < step.training.by_pipeline_rank.size(); ++r)
    if (step.training.by_pipeline_rank[r].arena_bytes > step.training.by_pipeline_rank[fullest].arena_bytes)
      fullest = r;
  const uint64_t needed = largest_arena(step);
  if (needed <= *limit) return;
  const std::vector<std::string> nearest = Search(config, *limit, *step.shape.model).nearest();
  throw InputError(fmt::format("--memory-limit {}: found {} for each replica of pipeline rank {} ({}), allowed: {}; {}",
                               config.memory_limit, human_bytes(needed), fullest,
                               largest_parts(memory(step.training.by_pipeline_rank[fullest])), human_bytes(*limit),
                               nearest.empty() ? std::string("no layout within a few changes fits")
                                               : fmt::format("what fits: {}", fmt::join(nearest, "; "))));
}

}  // namespace shardpipe
