#include "schedules/schedule.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace shardpipe {
namespace {

struct Generator {
  std::string_view name;
  Schedule (*make)(uint16_t ranks, uint16_t micro_batches);
};
constexpr std::array generators{Generator{"gpipe", gpipe}, Generator{"1f1b", one_forward_one_backward}};

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Generator& generator : generators) names.emplace_back(generator.name);
  return names;
}

bool is_schedule(std::string_view name) {
  return std::ranges::any_of(generators, [&](const Generator& generator) { return generator.name == name; });
}

Schedule make_schedule(std::string_view name, uint16_t ranks, uint16_t micro_batches) {
  check_invariant(ranks >= 1 && micro_batches >= 1,
                  "a schedule needs a rank and a micro-batch: {} ranks, {} micro-batches", ranks, micro_batches);
  const auto* found = std::ranges::find(generators, name, &Generator::name);
  check_invariant(found != generators.end(), "no schedule is called '{}'", name);
  return found->make(ranks, micro_batches);
}

std::string to_string(const Cell& cell) {
  return fmt::format("{}{}{}", cell.chunk, cell.pass == Pass::Forward ? 'F' : 'B', cell.micro_batch);
}

}  // namespace shardpipe
