#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "layout/layout.h"

namespace shardpipe {
namespace {

// Digits alone, and nothing behind them.
std::optional<size_t> number_in(std::string_view text) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string_view take_until(std::string_view& text, char mark) {
  const size_t end = std::min(text.find(mark), text.size());
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return taken;
}

// "1,4-6" -> those blocks; nullopt where it is no such list, or names a block that is not there.
std::optional<std::vector<size_t>> blocks_in(std::string_view list, size_t blocks) {
  std::vector<size_t> named;
  if (list.empty() || list.back() == ',') return std::nullopt;
  while (!list.empty()) {
    std::string_view range = take_until(list, ',');
    const bool is_range = range.find('-') != std::string_view::npos;
    const std::optional<size_t> first = number_in(take_until(range, '-'));
    const std::optional<size_t> last = is_range ? number_in(range) : first;
    if (!first || !last || *first > *last || *last >= blocks) return std::nullopt;
    for (size_t b = *first; b <= *last; ++b) named.push_back(b);
  }
  return named;
}

}  // namespace

std::vector<Recompute> recompute_of_blocks(const std::string& rule, const Model& model) {
  std::vector<Recompute> of_blocks(model.blocks.size(), Recompute::None);
  const auto set_layers = [&](Recompute recompute, int64_t every) {
    for (size_t b = 0; b < of_blocks.size(); ++b)
      if (model.blocks[b].kind == BlockKind::Layer && model.blocks[b].layer % every == 0) of_blocks[b] = recompute;
  };
  constexpr std::string_view every = "every:", blocks = "blocks:";
  const std::string_view text = rule;
  if (text == "none") return of_blocks;
  if (text == "full") {
    set_layers(Recompute::Full, 1);
    return of_blocks;
  }
  if (text == "selective") {
    set_layers(Recompute::Selective, 1);
    return of_blocks;
  }
  if (text.starts_with(every)) {
    const std::optional<size_t> n = number_in(text.substr(every.size()));
    if (n && *n >= 1 && *n <= of_blocks.size()) {
      set_layers(Recompute::Full, static_cast<int64_t>(*n));
      return of_blocks;
    }
  }
  if (text.starts_with(blocks)) {
    if (const auto named = blocks_in(text.substr(blocks.size()), of_blocks.size())) {
      for (const size_t b : *named) of_blocks[b] = Recompute::Full;
      return of_blocks;
    }
  }
  const size_t layers = of_blocks.size() - 2;
  throw InputError(
      fmt::format("--recompute: found '{}', allowed: none, full, selective, every:N (1 to {} layers), blocks:LIST "
                  "(such as 1,4-6, of 0 to {})",
                  rule, layers, of_blocks.size() - 1));
}

}  // namespace shardpipe
