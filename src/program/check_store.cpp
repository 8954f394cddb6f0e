// What a rank keeps in its store is reached by Fetch and Offload alone, each a copy of one buffer; every change of it
// in the arena goes back before the step ends and before it is fetched again, and nothing else does. Optimizer states
// in pieces are updated piece by piece, all of them.
#include <fmt/format.h>

#include <map>

#include "program/check_rules.h"
#include "program/text.h"

namespace shardpipe {
namespace {

constexpr uint32_t nobody = UINT32_MAX;

bool is_in_pieces(Role role) { return role == Role::Master || role == Role::OptimizerState; }
bool is_state(Role role) { return is_in_pieces(role) || role == Role::Parameters || role == Role::Shard; }
bool may_be_stored(Role role) { return is_state(role) || role == Role::Saved || role == Role::Activation; }

// A buffer of the store, and what may be its copy in the arena.
bool are_copies(const Buffer& stored, const Buffer& here) {
  return stored.stored && !here.stored && !here.resident && may_be_stored(stored.role) && stored.role == here.role &&
         stored.index == here.index && stored.micro_batch == here.micro_batch && stored.bytes == here.bytes &&
         stored.resident == is_state(stored.role) && stored.copy == (is_in_pieces(stored.role) ? here.copy : 0);
}

void check_copies(const Program& program, uint16_t r, std::vector<Finding>& findings) {
  const RankProgram& rank = program.by_pipeline_rank[r];
  std::vector<uint32_t> source(rank.buffers.size(), nobody);   // of a copy here: what it was fetched from
  std::vector<uint32_t> changed(rank.buffers.size(), nobody);  // of what is stored: the copy that is newer
  for (size_t i = 0; i < rank.actions.size(); ++i) {
    const Action& action = rank.actions[i];
    const auto finding = [&](std::string_view rule) { findings.push_back({std::string(rule), place(program, r, i)}); };
    const bool fetch = action.kind == Kind::Fetch;
    if (!fetch && action.kind != Kind::Offload) {
      for (const Use& use : uses_of(rank, action)) {
        if (use.access == Access::Read || source[use.buffer] == nobody) continue;
        uint32_t& newer = changed[source[use.buffer]];
        if (newer != nobody && newer != use.buffer) finding("one copy of what is stored is changed at a time");
        newer = use.buffer;
      }
      continue;
    }
    const Use* uses = rank.begin_uses(action);
    const bool copies = action.use_count == 2 && uses[0].access == Access::Read && uses[1].access == Access::Write;
    const uint32_t stored = copies ? uses[fetch ? 0 : 1].buffer : 0, here = copies ? uses[fetch ? 1 : 0].buffer : 0;
    if (!copies || action.index != none || action.micro_batch != none ||
        !are_copies(rank.buffers[stored], rank.buffers[here])) {
      finding("a fetch or an offload copies one buffer, as it is");
      continue;
    }
    if (fetch && changed[stored] != nobody) finding("nothing is fetched while a newer value of it is not stored");
    if (fetch) source[here] = rank.buffers[stored].resident ? stored : nobody;
    if (fetch || !rank.buffers[stored].resident) continue;
    if (changed[stored] != here) finding("what is stored again was changed since it was fetched");
    changed[stored] = nobody;
  }
  for (size_t b = 0; b < changed.size(); ++b)
    if (changed[b] != nobody)
      findings.push_back({"what is changed is stored again", fmt::format("rank {}: {}", r, name_of(rank.buffers[b]))});
}

// State is kept in one place; in the store in pieces of one size, of which the last may be smaller.
void check_places(const Program& program, uint16_t r, std::vector<Finding>& findings) {
  const RankProgram& rank = program.by_pipeline_rank[r];
  using Pieces = std::map<uint16_t, uint64_t>;  // bytes by number
  std::map<std::pair<Role, uint16_t>, Pieces> stored;
  for (const Buffer& buffer : rank.buffers)
    if (buffer.stored && buffer.resident) stored[{buffer.role, buffer.index}].emplace(buffer.copy, buffer.bytes);
  for (const Buffer& buffer : rank.buffers)
    if (!buffer.stored && buffer.resident && stored.contains({buffer.role, buffer.index}))
      findings.push_back(
          {"what is kept between steps is kept in one place", fmt::format("rank {}: {}", r, name_of(buffer))});
  std::map<uint16_t, size_t> steps;
  for (const Action& action : rank.actions)
    if (action.kind == Kind::OptimizerStep && action.piece != none) ++steps[action.index];
  for (const auto& [of, pieces] : stored) {
    const auto finding = [&](std::string_view rule) {
      findings.push_back({std::string(rule), fmt::format("rank {}: {} g{}", r, to_string(of.first), of.second)});
    };
    if (!is_in_pieces(of.first)) continue;
    size_t number = 0;
    for (const auto& [copy, bytes] : pieces) {
      const bool last = ++number == pieces.size();
      if (copy != number || (last ? bytes > pieces.begin()->second : bytes != pieces.begin()->second))
        finding("pieces are numbered from 1 and have one size, but for the last");
    }
    if (steps[of.second] != pieces.size()) finding("every piece of what is stored is updated");
  }
}

}  // namespace

void check_store(const Program& program, uint16_t r, std::vector<Finding>& findings) {
  check_copies(program, r, findings);
  check_places(program, r, findings);
}

}  // namespace shardpipe
