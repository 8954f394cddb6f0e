#include "program/text.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace shardpipe {
namespace {

constexpr std::array<std::string_view, lane_count> lane_names{"compute", "send-fwd", "recv-fwd", "send-bwd", "recv-bwd",
                                                              "gather",  "reduce",   "fetch",    "offload"};
constexpr std::array<std::string_view, 21> role_names{
    "tokens",        "targets",         "activation", "saved",  "recomputed",       "between",    "activation-gradient",
    "workspace",     "parameters",      "shard",      "master", "partial-gradient", "gradient",   "exact-gradient",
    "wire-gradient", "optimizer-state", "loss",       "slots",  "scalars",          "loss-scale", "overflows"};
constexpr std::array<std::string_view, 17> kind_names{"F",
                                                      "R",
                                                      "B",
                                                      "I",
                                                      "W",
                                                      "send",
                                                      "receive",
                                                      "unshard",
                                                      "reduce",
                                                      "sum-tied",
                                                      "add-exact",
                                                      "round",
                                                      "gradient-norm",
                                                      "clip",
                                                      "optimizer-step",
                                                      "fetch",
                                                      "offload"};

constexpr std::array<std::string_view, 4> replicas_names{"", " replicas", " shard-group", " across-groups"};

bool of_a_block(Role role) {
  return role == Role::Activation || role == Role::Saved || role == Role::Recomputed || role == Role::Between ||
         role == Role::ActivationGradient;
}
bool of_a_block(Kind kind) { return is_compute(kind) || kind == Kind::Send || kind == Kind::Receive; }

}  // namespace

std::string to_string(Kind kind) { return std::string(kind_names[static_cast<size_t>(kind)]); }
std::string to_string(Lane lane) { return std::string(lane_names[static_cast<size_t>(lane)]); }
std::string to_string(Role role) { return std::string(role_names[static_cast<size_t>(role)]); }

std::string name_of(const Buffer& buffer) {
  std::string name = (buffer.stored ? "stored " : "") + to_string(buffer.role);
  if (buffer.index != none) name += fmt::format(" {}{}", of_a_block(buffer.role) ? 'b' : 'g', buffer.index);
  if (buffer.copy != 0) name += fmt::format(".{}", buffer.copy);
  if (buffer.micro_batch != none) name += fmt::format(" m{}", buffer.micro_batch);
  return name;
}

std::string name_of(const Action& action) {
  std::string name = to_string(action.kind);
  if (action.extent == Extent::Owned) name += "/owned";
  if (action.index != none) name += fmt::format(" {}{}", of_a_block(action.kind) ? 'b' : 'g', action.index);
  if (action.piece != none) name += fmt::format(".{}", action.piece);
  if (action.micro_batch != none) name += fmt::format(" m{}", action.micro_batch);
  return name;
}

std::string describe(const RankProgram& rank, const Action& action) {
  std::string reads, writes;
  for (const Use& use : uses_of(rank, action)) {
    const std::string name = name_of(rank.buffers[use.buffer]);
    std::string& list = use.access == Access::Read ? reads : writes;
    list += (list.empty() ? "" : ", ") + std::string(use.access == Access::Add ? "+" : "") + name;
  }
  return fmt::format("{:<9} {}   {}{}{}", to_string(action.lane), name_of(action), reads,
                     reads.empty() ? "-> " : " -> ", writes);
}

std::string print(const Program& program, Detail detail) {
  std::string text = "program\n";
  for (size_t g = 0; g < program.groups.size(); ++g) {
    const Group& group = program.groups[g];
    text += fmt::format("group {} {} : {}{}\n", g, group.name, fmt::join(group.pipeline_ranks, " "),
                        replicas_names[static_cast<size_t>(group.replicas)]);
  }
  for (size_t r = 0; r < program.by_pipeline_rank.size(); ++r) {
    const RankProgram& rank = program.by_pipeline_rank[r];
    text += fmt::format("rank {}", r);
    if (detail == Detail::Addresses) text += fmt::format(" arena {}", rank.arena_bytes);
    if (detail == Detail::Addresses && rank.store_bytes > 0) text += fmt::format(" store {}", rank.store_bytes);
    text += '\n';
    if (detail == Detail::Addresses)
      for (const Buffer& buffer : rank.buffers)
        text += fmt::format("buffer {}{} : {} @ {}\n", name_of(buffer), buffer.resident ? " resident" : "",
                            buffer.bytes, buffer.offset);
    for (const Action& action : rank.actions) {
      text += describe(rank, action);
      if (action.group != none) text += fmt::format("   with {} #{}", action.group, action.sequence);
      if (action.wait_count > 0) {
        text += "   waits";
        for (uint32_t w = 0; w < action.wait_count; ++w) text += fmt::format(" {}", rank.waits[action.first_wait + w]);
      }
      text += '\n';
    }
  }
  return text;
}

namespace {

// Reads one line from the left; every failure names the line.
class LineReader {
 public:
  LineReader(std::string_view line, int number) : rest_(line), line_(line), number_(number) {}

  [[noreturn]] void fail(std::string_view allowed) const {
    throw InputError(
        fmt::format("program text, line {}: found '{}' in '{}'; allowed here: {}", number_, rest_, line_, allowed));
  }
  bool done() {
    skip();
    return rest_.empty();
  }
  bool take(std::string_view word) {
    skip();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  void need(std::string_view word) {
    if (!take(word)) fail(fmt::format("'{}'", word));
  }
  // A word ends at a space or a comma.
  std::string_view word() {
    skip();
    const size_t end = std::min(rest_.find_first_of(" ,"), rest_.size());
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return found;
  }
  template <typename Number>
  Number number() {
    skip();
    Number value{};
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc{}) fail("a number in range");
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return value;
  }
  template <typename Enum, size_t size>
  Enum one_of(const std::array<std::string_view, size>& names) {
    const LineReader before = *this;
    const std::string_view found = word();
    for (size_t i = 0; i < size; ++i)
      if (names[i] == found) return static_cast<Enum>(i);
    before.fail(fmt::format("{}", fmt::join(names, ", ")));
  }
  void end() {
    if (!done()) fail("the end of the line");
  }
  std::string_view until(std::string_view mark) {
    skip();
    const size_t at = rest_.find(mark);
    if (at == std::string_view::npos) fail(fmt::format("… '{}'", mark));
    std::string_view found = rest_.substr(0, at);
    rest_.remove_prefix(at + mark.size());
    while (!found.empty() && found.back() == ' ') found.remove_suffix(1);
    return found;
  }

 private:
  void skip() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  std::string_view rest_, line_;
  int number_;
};

Buffer read_buffer_name(LineReader& line) {
  Buffer buffer;
  buffer.stored = line.take("stored ");
  buffer.role = line.one_of<Role>(role_names);
  if (line.take(of_a_block(buffer.role) ? "b" : "g")) buffer.index = line.number<uint16_t>();
  if (line.take(".")) buffer.copy = line.number<uint16_t>();
  if (line.take("m")) buffer.micro_batch = line.number<uint16_t>();
  return buffer;
}

constexpr uint32_t none_found = UINT32_MAX;

uint32_t find_buffer(const RankProgram& rank, const Buffer& meaning) {
  const auto found = std::ranges::find_if(rank.buffers, [&](const Buffer& known) {
    return known.stored == meaning.stored && known.role == meaning.role && known.index == meaning.index &&
           known.micro_batch == meaning.micro_batch && known.copy == meaning.copy;
  });
  return found == rank.buffers.end() ? none_found : static_cast<uint32_t>(found - rank.buffers.begin());
}

void read_uses(LineReader& line, RankProgram& rank, Action& action) {
  const auto one = [&](Access access) {
    const LineReader before = line;
    const Buffer meaning = read_buffer_name(line);
    const uint32_t found = find_buffer(rank, meaning);
    if (found == none_found) before.fail("a buffer of this rank");
    rank.uses.push_back({found, access});
    ++action.use_count;
  };
  action.first_use = static_cast<uint32_t>(rank.uses.size());
  if (!line.take("->")) {
    do one(Access::Read);
    while (line.take(","));
    line.need("->");
  }
  const auto at_a_write = [&] {
    LineReader ahead = line;
    return !ahead.done() && !ahead.take("with ") && !ahead.take("waits ");
  };
  if (at_a_write()) do
      one(line.take("+") ? Access::Add : Access::Write);
    while (line.take(","));
}

Action read_action(LineReader& line, RankProgram& rank) {
  Action action;
  action.lane = line.one_of<Lane>(lane_names);
  // "reduce/owned g1": the extent hangs on the kind
  LineReader ahead = line;
  const std::string_view kind = ahead.word();
  const size_t slash = kind.find('/');
  if (slash != std::string_view::npos && kind.substr(slash) == "/owned") action.extent = Extent::Owned;
  const std::string_view bare = kind.substr(0, slash);
  size_t k = 0;
  while (k < kind_names.size() && kind_names[k] != bare) ++k;
  if (k == kind_names.size() || (slash != std::string_view::npos && action.extent != Extent::Owned))
    line.fail(fmt::format("{}, with or without /owned", fmt::join(kind_names, ", ")));
  action.kind = static_cast<Kind>(k);
  line = ahead;
  // An index is a letter and a number: "b3"; "gradient g0" begins with a letter too, so look at the digit.
  const auto indexed = [&](char letter) {
    LineReader next = line;
    const std::string_view found = next.word();
    return found.size() > 1 && found[0] == letter && found[1] >= '0' && found[1] <= '9';
  };
  const char letter = of_a_block(action.kind) ? 'b' : 'g';
  if (indexed(letter)) {
    line.need(std::string_view(&letter, 1));
    action.index = line.number<uint16_t>();
    if (line.take(".")) action.piece = line.number<uint16_t>();
  }
  if (indexed('m')) {
    line.need("m");
    action.micro_batch = line.number<uint16_t>();
  }
  read_uses(line, rank, action);
  if (line.take("with ")) {
    action.group = line.number<uint16_t>();
    line.need("#");
    action.sequence = line.number<uint32_t>();
  }
  action.first_wait = static_cast<uint32_t>(rank.waits.size());
  if (line.take("waits "))
    for (; !line.done(); ++action.wait_count) rank.waits.push_back(line.number<uint32_t>());
  line.end();
  return action;
}

}  // namespace

Program parse_program(std::string_view text) {
  Program program;
  RankProgram* rank = nullptr;
  bool begun = false;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    LineReader line(text.substr(0, end), number);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.done()) continue;
    if (!begun) {
      line.need("program");
      line.end();
      begun = true;
    } else if (line.take("group ")) {
      if (line.number<size_t>() != program.groups.size()) line.fail(fmt::format("group {}", program.groups.size()));
      Group& group = program.groups.emplace_back();
      group.name = line.until(" : ");
      while (!line.done()) {
        size_t unites = 1;
        while (unites < replicas_names.size() && !line.take(replicas_names[unites].substr(1))) ++unites;
        if (unites < replicas_names.size())
          group.replicas = static_cast<Replicas>(unites);
        else
          group.pipeline_ranks.push_back(line.number<uint16_t>());
      }
    } else if (line.take("rank ")) {
      if (line.number<size_t>() != program.by_pipeline_rank.size())
        line.fail(fmt::format("rank {}", program.by_pipeline_rank.size()));
      rank = &program.by_pipeline_rank.emplace_back();
      line.need("arena");
      rank->arena_bytes = line.number<uint64_t>();
      if (line.take("store ")) rank->store_bytes = line.number<uint64_t>();
      line.end();
    } else if (rank == nullptr) {
      line.fail("'group' or 'rank'");
    } else if (line.take("buffer ")) {
      const LineReader before = line;
      Buffer buffer = read_buffer_name(line);
      if (find_buffer(*rank, buffer) != none_found) before.fail("each buffer once");
      buffer.resident = line.take("resident");
      line.need(":");
      buffer.bytes = line.number<uint64_t>();
      line.need("@");
      buffer.offset = line.number<uint64_t>();
      line.end();
      rank->buffers.push_back(buffer);
    } else {
      const Action action = read_action(line, *rank);
      rank->actions.push_back(action);
    }
  }
  if (!begun) throw InputError("program text: found nothing; allowed: a line 'program', then groups and ranks");
  return program;
}

}  // namespace shardpipe
