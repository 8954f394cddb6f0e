// Runs a program on symbols instead of numbers, with lanes that take turns at random: every value is an expression of
// what went into it, so two runs that end with the same symbols computed the same thing in the same order of
// operations. Memory is real, in granules of the arena: a value whose bytes were overwritten reads as garbage.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "program/compile.h"
#include "program/slots.h"
#include "program/text.h"

namespace shardpipe {

using Symbol = uint32_t;

// Equal expressions get equal symbols, also across runs that share one table.
class Symbols {
 public:
  static constexpr Symbol garbage = 0;
  Symbols() { of("garbage", {}); }
  Symbol of(const std::string& operation, std::vector<Symbol> operands) {
    const auto [found, made] =
        known_.try_emplace({operation, std::move(operands)}, static_cast<Symbol>(by_symbol_.size()));
    if (made) by_symbol_.push_back(&found->first);
    return found->second;
  }
  // An array that is made of one symbol for each shard of it.
  Symbol array(std::vector<Symbol> shards) { return of("array", std::move(shards)); }
  std::vector<Symbol> shards(Symbol array, size_t count) const {
    const Key& key = *by_symbol_[array];
    return key.first == "array" && key.second.size() == count ? key.second : std::vector<Symbol>(count, garbage);
  }
  std::vector<Symbol> operands(Symbol symbol) const {
    return symbol < by_symbol_.size() ? by_symbol_[symbol]->second : std::vector<Symbol>();
  }
  std::string operation(Symbol symbol) const {
    return symbol < by_symbol_.size() ? by_symbol_[symbol]->first : std::string();
  }
  std::string text(Symbol symbol, int depth = 4) const {
    if (symbol >= by_symbol_.size()) return "nobody's";
    const auto& [operation, operands] = *by_symbol_[symbol];
    std::string inner;
    for (const Symbol operand : operands)
      inner += (inner.empty() ? "" : ", ") + (depth > 0 ? text(operand, depth - 1) : std::string("…"));
    return operands.empty() ? operation : operation + "(" + inner + ")";
  }

  // The innermost expressions in which two differ; empty: they do not.
  std::string difference(Symbol left, Symbol right) const {
    if (left == right) return "";
    if (std::max(left, right) >= by_symbol_.size()) return text(left, 1) + " or " + text(right, 1);
    const Key &l = *by_symbol_[left], &r = *by_symbol_[right];
    if (l.first == r.first && l.second.size() == r.second.size())
      for (size_t i = 0; i < l.second.size(); ++i)
        if (l.second[i] != r.second[i])
          return fmt::format("{} {}: {}", l.first, i, difference(l.second[i], r.second[i]));
    return text(left, 1) + " or " + text(right, 1);
  }

 private:
  using Key = std::pair<std::string, std::vector<Symbol>>;
  std::map<Key, Symbol> known_;
  std::vector<const Key*> by_symbol_;
};

// What a step leaves behind, the same for all layouts: of each parameter group an array, and the norm's inputs.
struct Outcome {
  bool finished = false;  // false: no action could move
  std::map<uint16_t, Symbol> parameters, optimizer_states;
  Symbol scalars = UINT32_MAX;
  std::string disagreement;  // between ranks that hold the same parameters; empty: none
  bool operator==(const Outcome&) const = default;
};

// Where two outcomes differ, for a person; empty: nowhere.
inline std::string difference(const Outcome& left, const Outcome& right, const Symbols& symbols) {
  if (left == right) return "";
  if (left.finished != right.finished) return "one of them waits for ever";
  if (left.disagreement != right.disagreement) return left.disagreement + right.disagreement;
  for (const auto& [what, l, r] : {std::tuple("parameters", &left.parameters, &right.parameters),
                                   {"optimizer state", &left.optimizer_states, &right.optimizer_states}})
    for (const auto& [group, symbol] : *l)
      if (!r->contains(group) || r->at(group) != symbol)
        return fmt::format("{} g{}: {}", what, group,
                           r->contains(group) ? symbols.difference(symbol, r->at(group)) : "only one has it");
  return left.scalars != right.scalars ? "scalars: " + symbols.difference(left.scalars, right.scalars)
                                       : "one of them has more parameter groups";
}

class Interpreter {
 public:
  Interpreter(const Program& program, const StepShape& shape, Symbols& symbols)
      : program_(program),
        shape_(shape),
        dp_(static_cast<uint16_t>(shape.layout.dp)),
        copies_(static_cast<uint16_t>(shape.layout.replicate)),
        symbols_(symbols) {
    for (uint16_t r = 0; r < program.by_pipeline_rank.size(); ++r)
      for (uint16_t d = 0; d < dp_; ++d) {
        workers_.push_back(
            {.rank = r, .replica = d, .memory = {}, .store = {}, .done = {}, .queues = {}, .spoken = {}});
        Worker& worker = workers_.back();
        const RankProgram& rank = program.by_pipeline_rank[r];
        worker.memory.assign(rank.arena_bytes / granule + 1, {});
        worker.store.assign(rank.store_bytes / granule + 1, {});
        worker.done.assign(rank.actions.size(), false);
        worker.spoken.assign(program.groups.size(), 0);
        for (uint32_t b = 0; b < rank.buffers.size(); ++b)
          if (rank.buffers[b].resident) store(worker, b, initial(worker, rank.buffers[b]));
      }
  }

  // Lanes side by side, whichever may move chosen at random; or each rank one lane, its list in order.
  Outcome run(std::mt19937& random, bool one_lane) {
    for (Worker& worker : workers_) {
      const auto& actions = program_.by_pipeline_rank[worker.rank].actions;
      worker.queues.assign(one_lane ? 1 : lane_count, {});
      for (uint32_t i = static_cast<uint32_t>(actions.size()); i-- > 0;)
        worker.queues[one_lane ? 0 : static_cast<size_t>(actions[i].lane)].push_back(i);
    }
    Outcome outcome;
    while (true) {
      std::vector<std::pair<Worker*, uint32_t>> movable;
      bool any_left = false;
      for (Worker& worker : workers_)
        for (const auto& queue : worker.queues) {
          if (queue.empty()) continue;
          any_left = true;
          if (ready(worker, queue.back())) movable.emplace_back(&worker, queue.back());
        }
      if (!any_left) break;
      // An action of a group moves when all its members have come to it; the first of them speaks for all.
      std::vector<std::vector<std::pair<Worker*, uint32_t>>> meetings;
      for (const auto& [worker, i] : movable)
        if (auto meeting = met(*worker, i, movable)) meetings.push_back(std::move(*meeting));
      if (meetings.empty()) return outcome;
      const size_t chosen = random() % meetings.size();
      perform(meetings[chosen]);
      for (const auto& [worker, i] : meetings[chosen]) {
        worker->done[i] = true;
        const Action& action = program_.by_pipeline_rank[worker->rank].actions[i];
        if (action.group != none) ++worker->spoken[action.group];
        for (auto& queue : worker->queues)
          if (!queue.empty() && queue.back() == i) queue.pop_back();
      }
    }
    outcome.finished = true;
    collect(outcome);
    return outcome;
  }

 private:
  static constexpr uint64_t granule = 64;
  static constexpr Symbol unseen = UINT32_MAX;
  struct Cell {
    Symbol value = Symbols::garbage;
    uint32_t buffer = UINT32_MAX;
  };
  struct Worker {
    uint16_t rank, replica;
    std::vector<Cell> memory, store;
    std::vector<Cell>& place_of(const Buffer& buffer) { return buffer.stored ? store : memory; }
    const std::vector<Cell>& place_of(const Buffer& buffer) const { return buffer.stored ? store : memory; }
    std::vector<bool> done;
    std::vector<std::vector<uint32_t>> queues;  // next action last
    std::vector<uint32_t> spoken;               // actions done in each group
  };
  using Meeting = std::vector<std::pair<Worker*, uint32_t>>;

  const RankProgram& rank_of(const Worker& worker) const { return program_.by_pipeline_rank[worker.rank]; }
  // Parameters as blocks read them, and the fp32 masters behind them, are one value here.
  static bool is_parameters(Role role) {
    return role == Role::Parameters || role == Role::Shard || role == Role::Master;
  }
  // Of an element of the group, in all states together.
  uint64_t element_bytes(Role role) const {
    if (role == Role::ExactGradient || (role == Role::PartialGradient && shape_.layout.reproducible))
      return sizeof(int64_t);
    if (role == Role::OptimizerState) return sizeof(float) * shape_.optimizer_states_per_element;
    return role == Role::Parameters || role == Role::Shard ? shape_.parameter_bytes() : sizeof(float);
  }
  // Of an array in pieces: how many there are, and the bytes of all; else 0.
  std::pair<size_t, uint64_t> pieces_of(const Worker& worker, const Buffer& buffer) const {
    std::pair<size_t, uint64_t> sum{0, 0};
    if (buffer.role != Role::Master && buffer.role != Role::OptimizerState) return sum;
    for (const Buffer& other : rank_of(worker).buffers)
      if (other.stored && other.role == buffer.role && other.index == buffer.index) {
        ++sum.first;
        sum.second += other.bytes;
      }
    return sum;
  }
  // Every piece of an array is one symbol for each slice of the whole.
  bool is_whole(const Worker& worker, const Buffer& buffer) const {
    const uint64_t in_pieces = pieces_of(worker, buffer).second;
    return (in_pieces > 0 ? in_pieces : buffer.bytes) ==
           shape_.shards_of(buffer.index).padded_elements() * element_bytes(buffer.role);
  }

  void store(Worker& worker, uint32_t b, Symbol value) {
    const Buffer& buffer = rank_of(worker).buffers[b];
    if (buffer.bytes == 0) return;
    for (uint64_t g = buffer.offset / granule; g <= (buffer.offset + buffer.bytes - 1) / granule; ++g)
      worker.place_of(buffer)[g] = {value, b};
  }
  Symbol load(const Worker& worker, uint32_t b) const {
    const Buffer& buffer = rank_of(worker).buffers[b];
    if (buffer.bytes == 0) return Symbols::garbage;
    const std::vector<Cell>& cells = worker.place_of(buffer);
    const Cell first = cells[buffer.offset / granule];
    for (uint64_t g = buffer.offset / granule; g <= (buffer.offset + buffer.bytes - 1) / granule; ++g)
      if (cells[g].buffer != b || cells[g].value != first.value) return Symbols::garbage;
    return first.value;
  }

  Symbol shard_symbol(const char* what, uint16_t group, uint16_t shard) {
    return symbols_.of(fmt::format("{} g{}/{}", what, group, shard), {});
  }
  Symbol whole_symbol(const char* what, uint16_t group) {
    std::vector<Symbol> shards;
    for (uint16_t s = 0; s < dp_; ++s) shards.push_back(shard_symbol(what, group, s));
    return symbols_.array(shards);
  }
  // A shard is as many slices as there are copies of it; a whole array one for each replica.
  uint16_t first_slice(const Worker& worker) const {
    return static_cast<uint16_t>(shape_.shard_index(worker.replica) * copies_);
  }
  bool is_own(const Worker& worker, uint16_t slice) const {
    return slice >= first_slice(worker) && slice < first_slice(worker) + copies_;
  }
  size_t slices_in(const Worker& worker, const Buffer& buffer) const {
    return is_whole(worker, buffer) ? dp_ : copies_;
  }
  Symbol own_symbol(const char* what, uint16_t group, const Worker& worker) {
    std::vector<Symbol> slices;
    for (uint16_t s = 0; s < copies_; ++s)
      slices.push_back(shard_symbol(what, group, static_cast<uint16_t>(first_slice(worker) + s)));
    return symbols_.array(slices);
  }
  // The place of a slice in an array that is whole or this replica's shard.
  size_t at(const std::vector<Symbol>& slices, const Worker& worker, uint16_t slice) const {
    return slices.size() == dp_ ? slice : size_t{slice} - first_slice(worker);
  }
  // ((0 + 1) + (2 + 3)) + (4 + 5)
  Symbol pairwise(std::vector<Symbol> terms) {
    while (terms.size() > 1) {
      std::vector<Symbol> pairs;
      for (size_t i = 0; i < terms.size(); i += 2)
        pairs.push_back(i + 1 < terms.size() ? plus(terms[i], terms[i + 1]) : terms[i]);
      terms = std::move(pairs);
    }
    return terms.at(0);
  }
  Symbol initial(const Worker& worker, const Buffer& buffer) {
    switch (buffer.role) {
      case Role::Parameters:
        return whole_symbol("P", buffer.index);
      case Role::Shard:
      case Role::Master:
        return is_whole(worker, buffer) ? whole_symbol("P", buffer.index) : own_symbol("P", buffer.index, worker);
      case Role::OptimizerState:
        return is_whole(worker, buffer) ? whole_symbol("state", buffer.index)
                                        : own_symbol("state", buffer.index, worker);
      default:
        return symbols_.of(fmt::format("{} m{} of {}", to_string(buffer.role), buffer.micro_batch, worker.replica), {});
    }
  }

  bool ready(const Worker& worker, uint32_t i) const {
    const RankProgram& rank = rank_of(worker);
    const Action& action = rank.actions[i];
    for (uint32_t w = 0; w < action.wait_count; ++w)
      if (!worker.done[rank.waits[action.first_wait + w]]) return false;
    return action.group == none || worker.spoken[action.group] == action.sequence;
  }

  // All members of the action's group, if this worker is the first of them and all are there; alone without a group.
  std::optional<Meeting> met(Worker& worker, uint32_t i, const Meeting& movable) {
    const uint16_t group = rank_of(worker).actions[i].group;
    if (group == none) return Meeting{{&worker, i}};
    const auto& ranks = program_.groups[group].pipeline_ranks;
    const Replicas unites = program_.groups[group].replicas;
    const auto together = [&](const Worker& other) {
      switch (unites) {
        case Replicas::Own:
          return other.replica == worker.replica;
        case Replicas::All:
          return true;
        case Replicas::ShardGroup:
          return shape_.copy_index(other.replica) == shape_.copy_index(worker.replica);
        case Replicas::AcrossGroups:
          return shape_.shard_index(other.replica) == shape_.shard_index(worker.replica);
      }
      return false;
    };
    Meeting meeting;
    for (const auto& [other, j] : movable)
      if (rank_of(*other).actions[j].group == group && together(*other)) meeting.emplace_back(other, j);
    if (meeting.front().first != &worker || meeting.size() != ranks.size() * replicas_in(unites, dp_, copies_))
      return std::nullopt;
    return meeting;
  }

  // The uses of an action by role and access, in order.
  struct View {
    std::vector<Symbol> inputs;  // all that is read
    std::vector<uint32_t> added, written;
  };
  View view(const Worker& worker, const Action& action) const {
    View view;
    for (const Use& use : uses_of(rank_of(worker), action)) {
      const Role role = rank_of(worker).buffers[use.buffer].role;
      if (role == Role::Workspace || role == Role::LossScale) continue;  // the scale cancels
      if (use.access != Access::Write) view.inputs.push_back(load(worker, use.buffer));
      if (use.access == Access::Add) view.added.push_back(use.buffer);
      if (use.access == Access::Write) view.written.push_back(use.buffer);
    }
    return view;
  }
  std::vector<Symbol> load_shards(const Worker& worker, uint32_t b) const {
    return symbols_.shards(load(worker, b), slices_in(worker, rank_of(worker).buffers[b]));
  }
  Symbol plus(Symbol left, Symbol right) {
    return left == Symbols::garbage || right == Symbols::garbage ? Symbols::garbage : symbols_.of("+", {left, right});
  }
  // A sum in which no order is left: its terms, sorted.
  Symbol exact_plus(const std::vector<Symbol>& sums) {
    std::vector<Symbol> terms;
    for (const Symbol sum : sums) {
      if (symbols_.operation(sum) != "exact") return Symbols::garbage;
      const std::vector<Symbol> more = symbols_.operands(sum);
      terms.insert(terms.end(), more.begin(), more.end());
    }
    std::ranges::sort(terms);
    return symbols_.of("exact", terms);
  }
  Symbol exact_term(Symbol value) {
    return value == Symbols::garbage ? Symbols::garbage : symbols_.of("exact", {value});
  }

  // What is lost is a function of what is added, and counted as if it were a sum of its own.
  void add_exact(Worker& worker, const Action& action) {
    std::vector<Symbol> terms;
    for (const Use& use : uses_of(rank_of(worker), action)) {
      const Buffer& buffer = rank_of(worker).buffers[use.buffer];
      if (buffer.role == Role::Gradient) {
        for (const Symbol slice : load_shards(worker, use.buffer)) terms.push_back(exact_term(slice));
      } else if (buffer.role == Role::ExactGradient) {
        std::vector<Symbol> sums = load_shards(worker, use.buffer);
        sums.resize(dp_, Symbols::garbage);
        for (uint16_t s = 0; s < dp_; ++s)
          sums[s] = use.access == Access::Write ? terms[s] : exact_plus({sums[s], terms[s]});
        store(worker, use.buffer, symbols_.array(sums));
      } else if (buffer.role == Role::Overflows) {
        const Symbol lost = exact_plus(terms);
        store(worker, use.buffer, use.access == Access::Write ? lost : exact_plus({load(worker, use.buffer), lost}));
      }
    }
  }

  void round(Worker& worker, const Action& action) {
    const Use* uses = rank_of(worker).begin_uses(action);
    const uint32_t to = (rank_of(worker).end_uses(action) - 1)->buffer;
    const std::vector<Symbol> sums = load_shards(worker, uses[0].buffer);
    std::vector<Symbol> gradient(slices_in(worker, rank_of(worker).buffers[to]), Symbols::garbage);
    for (uint16_t s = 0; s < dp_; ++s) {
      if ((gradient.size() < dp_ || action.extent == Extent::Owned) && !is_own(worker, s)) continue;
      if (const Symbol sum = sums[at(sums, worker, s)]; sum != Symbols::garbage)
        gradient[at(gradient, worker, s)] = symbols_.of("round", {sum});
    }
    store(worker, to, symbols_.array(gradient));
  }

  void perform(const Meeting& meeting) {
    const Worker& first = *meeting.front().first;
    const Action& action = rank_of(first).actions[meeting.front().second];
    switch (action.kind) {
      case Kind::Forward:
      case Kind::Recompute:
      case Kind::Backward:
      case Kind::BackwardInput:
      case Kind::BackwardWeight:
        return compute(*meeting.front().first, action);
      case Kind::Send:
      case Kind::Receive:
        return transfer(meeting);
      case Kind::Unshard:
        return unshard(meeting);
      case Kind::Reduce:
        return action.index == none ? reduce_slots(meeting) : reduce(meeting);
      case Kind::SumTied:
        return sum_tied(meeting);
      case Kind::AddExact:
        return add_exact(*meeting.front().first, action);
      case Kind::Round:
        return round(*meeting.front().first, action);
      case Kind::GradientNorm:
        return norm(*meeting.front().first, action);
      case Kind::Clip: {
        const View v = view(first, action);
        return store(*meeting.front().first, v.written.at(0), symbols_.of("clip", v.inputs));
      }
      case Kind::OptimizerStep:
        return optimizer_step(*meeting.front().first, action);
      case Kind::Fetch:
      case Kind::Offload: {
        const Use* uses = rank_of(first).begin_uses(action);
        return store(*meeting.front().first, uses[1].buffer, load(first, uses[0].buffer));
      }
    }
  }

  // A whole backward and its two parts make the same symbols: of what the input part read. What it leaves in between
  // remembers that, and the weight part is right only on what the same input part left. What is computed again is what
  // the forward would have kept: the same symbol, or, where a part was kept, that part's.
  void compute(Worker& worker, const Action& action) {
    const RankProgram& rank = rank_of(worker);
    View v;
    std::vector<Use> outputs;
    bool broken = false;
    std::optional<Symbol> between, saved;
    const bool again = action.kind == Kind::Recompute, backward = action.kind != Kind::Forward && !again;
    for (const Use& use : uses_of(rank, action)) {
      const Role role = rank.buffers[use.buffer].role;
      if (role == Role::Workspace || role == Role::LossScale) continue;
      // The embedding's gradients do not depend on its parameters, and its weight part does not read them.
      const bool counts = !(role == Role::Parameters && backward && action.index == 0);
      const bool of_forward = role == Role::Saved || role == Role::Recomputed;
      const bool reads = use.access == Access::Read || (of_forward && use.access == Access::Add);
      const bool second_part = reads && of_forward && saved;
      if (second_part && *saved != load(worker, use.buffer)) broken = true;
      if (reads && counts && !second_part) v.inputs.push_back(load(worker, use.buffer));
      if (reads && role == Role::Between) between = v.inputs.back();
      if (reads && of_forward && !second_part) saved = v.inputs.back();
      if (use.access != Access::Read) outputs.push_back(use);
    }
    if (action.kind == Kind::BackwardWeight && between) {
      const std::string b = fmt::format("B b{} ", action.index);
      const std::vector<Symbol> read = symbols_.operands(*between);
      broken = *between != symbols_.of(b + "between", read) || (saved && *saved != symbols_.of(b + "saved", read));
      for (const Symbol input : v.inputs)  // activation and output gradient: what the input part had
        if (input != *between && input != saved && std::ranges::find(read, input) == read.end()) broken = true;
      v.inputs = read;
    }
    broken = broken || std::ranges::find(v.inputs, Symbols::garbage) != v.inputs.end();
    for (const Use& use : outputs) {
      const Buffer& buffer = rank.buffers[use.buffer];
      if (again && saved) {
        store(worker, use.buffer, *saved);
        continue;
      }
      const Role role = buffer.role == Role::Recomputed ? Role::Saved : buffer.role;
      const std::string name = fmt::format("{} b{} {}", backward ? 'B' : 'F', action.index, to_string(role));
      if (buffer.role != Role::Gradient) {
        store(worker, use.buffer, broken ? Symbols::garbage : symbols_.of(name, v.inputs));
        continue;
      }
      std::vector<Symbol> shards = load_shards(worker, use.buffer);
      if (use.access == Access::Write) shards.assign(dp_, Symbols::garbage);
      for (uint16_t s = 0; s < shards.size(); ++s) {
        const Symbol term =
            broken ? Symbols::garbage
                   : symbols_.of(fmt::format("{} g{}.{}/{}", name, buffer.index, buffer.copy, s), v.inputs);
        shards[s] = use.access == Access::Write ? term : plus(shards[s], term);
      }
      store(worker, use.buffer, symbols_.array(shards));
    }
  }

  void transfer(const Meeting& meeting) {
    const auto side = [&](Kind kind) {
      return *std::ranges::find_if(meeting,
                                   [&](const auto& m) { return rank_of(*m.first).actions[m.second].kind == kind; });
    };
    const auto [sender, s] = side(Kind::Send);
    const auto [receiver, r] = side(Kind::Receive);
    store(*receiver, rank_of(*receiver).begin_uses(rank_of(*receiver).actions[r])->buffer,
          load(*sender, rank_of(*sender).begin_uses(rank_of(*sender).actions[s])->buffer));
  }

  void unshard(const Meeting& meeting) {
    std::vector<Symbol> whole(dp_);
    for (const auto& [worker, i] : meeting) {
      std::vector<Symbol> shards =
          load_shards(*worker, rank_of(*worker).begin_uses(rank_of(*worker).actions[i])->buffer);
      for (uint16_t s = 0; s < dp_; ++s)
        if (is_own(*worker, s)) whole[s] = shards[at(shards, *worker, s)];
    }
    for (const auto& [worker, i] : meeting) {
      const Action& action = rank_of(*worker).actions[i];
      store(*worker, rank_of(*worker).begin_uses(action)[action.use_count - 1].buffer, symbols_.array(whole));
    }
  }

  // Pairwise sums; owned: each replica gets its shard, and the rest of a whole array is garbage.
  void reduce(const Meeting& meeting) {
    std::vector<std::vector<Symbol>> sources;
    for (const auto& [worker, i] : meeting) {
      const ReduceUses uses = reduce_uses(rank_of(*worker), rank_of(*worker).actions[i]);
      std::vector<Symbol>& source = sources.emplace_back(load_shards(*worker, uses.source));
      if (uses.wire == UINT32_MAX) continue;
      for (Symbol& term : source)
        if (term != Symbols::garbage) term = symbols_.of("rounded", {term});
      store(*worker, uses.wire, symbols_.array(source));
    }
    for (const auto& [worker, i] : meeting) {
      const Action& action = rank_of(*worker).actions[i];
      const ReduceUses uses = reduce_uses(rank_of(*worker), action);
      std::vector<Symbol> result = load_shards(*worker, uses.sum);
      for (uint16_t s = 0; s < dp_; ++s) {
        if (action.extent == Extent::Owned && !is_own(*worker, s)) {
          if (result.size() == dp_) result[s] = Symbols::garbage;
          continue;
        }
        std::vector<Symbol> terms;
        for (const std::vector<Symbol>& source : sources) terms.push_back(source[at(source, *worker, s)]);
        Symbol& here = result[at(result, *worker, s)];
        if (is_exact(rank_of(*worker), action)) {
          if (uses.accumulate) terms.push_back(here);
          here = exact_plus(terms);
          continue;
        }
        here = uses.accumulate ? plus(here, pairwise(terms)) : pairwise(terms);
      }
      store(*worker, uses.sum, symbols_.array(result));
    }
  }

  void sum_tied(const Meeting& meeting) {
    std::map<uint16_t, std::vector<Symbol>> copies;  // embedding, head
    for (const auto& [worker, i] : meeting)
      for (const Use& use : uses_of(rank_of(*worker), rank_of(*worker).actions[i]))
        copies[rank_of(*worker).buffers[use.buffer].copy] = load_shards(*worker, use.buffer);
    std::vector<Symbol> sum;
    for (size_t s = 0; s < copies[0].size() && s < copies[1].size(); ++s)
      sum.push_back(
          is_exact(rank_of(*meeting.front().first), rank_of(*meeting.front().first).actions[meeting.front().second])
              ? exact_plus({copies[0][s], copies[1][s]})
              : plus(copies[0][s], copies[1][s]));
    for (const auto& [worker, i] : meeting)
      for (const Use& use : uses_of(rank_of(*worker), rank_of(*worker).actions[i]))
        if (use.access == Access::Add) store(*worker, use.buffer, symbols_.array(sum));
  }

  SlotShape slot_shape() const {
    return {shape_.model->groups.size(), dp_, static_cast<uint64_t>(shape_.layout.micro_batches()),
            shape_.layout.reproducible};
  }

  void norm(Worker& worker, const Action& action) {
    const SlotShape slot = slot_shape();
    std::vector<Symbol> slots(slot.count(), symbols_.of("zero", {}));
    for (const Use& use : uses_of(rank_of(worker), action)) {
      const Buffer& buffer = rank_of(worker).buffers[use.buffer];
      if (buffer.role == Role::Loss) {
        slots[slot.loss(worker.replica, buffer.micro_batch)] = load(worker, use.buffer);
      } else if (buffer.role == Role::Overflows) {
        slots[slot.overflows()] = load(worker, use.buffer);
      } else if (buffer.role == Role::Gradient) {
        const std::vector<Symbol> shards = load_shards(worker, use.buffer);
        const auto slice = action.extent == Extent::Whole
                               ? worker.replica
                               : static_cast<uint16_t>(first_slice(worker) + shape_.copy_index(worker.replica));
        slots[slot.square(buffer.index, slice)] = symbols_.of("square", {shards[at(shards, worker, slice)]});
      }
    }
    store(worker, (rank_of(worker).end_uses(action) - 1)->buffer, symbols_.array(slots));
  }

  void reduce_slots(const Meeting& meeting) {
    const Symbol zero = symbols_.of("zero", {});
    std::vector<Symbol> sum(slot_shape().count(), zero);
    for (const auto& [worker, i] : meeting) {
      const auto part =
          symbols_.shards(load(*worker, rank_of(*worker).begin_uses(rank_of(*worker).actions[i])->buffer), sum.size());
      for (size_t k = 0; k < sum.size(); ++k)
        if (shape_.layout.reproducible && k == slot_shape().overflows())  // the one to which all add
          sum[k] = sum[k] == zero ? part[k] : part[k] == zero ? sum[k] : exact_plus({sum[k], part[k]});
        else if (part[k] != zero)
          sum[k] = sum[k] == zero ? part[k] : Symbols::garbage;
    }
    for (const auto& [worker, i] : meeting)
      store(*worker, rank_of(*worker).begin_uses(rank_of(*worker).actions[i])->buffer, symbols_.array(sum));
  }

  // An array of which some pieces are updated: which, as bits. All of them: the next value.
  Symbol piece_updated(Symbol array, Symbol gradient, Symbol scalars, uint16_t piece, size_t pieces) {
    uint64_t done = 0;
    std::vector<Symbol> operands{array, gradient, scalars};
    if (const std::string operation = symbols_.operation(array); operation.starts_with("pieces ")) {
      done = std::stoull(operation.substr(7));
      operands = symbols_.operands(array);
    }
    const uint64_t bit = uint64_t{1} << (piece - 1);
    if ((done & bit) != 0 || operands[1] != gradient || operands[2] != scalars || piece > pieces)
      return Symbols::garbage;
    done |= bit;
    return symbols_.of(done + 1 == uint64_t{1} << pieces ? "next" : fmt::format("pieces {}", done), operands);
  }

  void optimizer_step(Worker& worker, const Action& action) {
    Symbol scalars = Symbols::garbage;
    std::vector<Symbol> gradient;
    std::vector<uint32_t> updated;
    const bool all_at_once = action.piece == none;
    size_t pieces = 0;
    for (const Use& use : uses_of(rank_of(worker), action)) {
      const Buffer& buffer = rank_of(worker).buffers[use.buffer];
      if (buffer.role == Role::Scalars) scalars = load(worker, use.buffer);
      if (buffer.role == Role::Gradient) gradient = load_shards(worker, use.buffer);
      if (use.access == Access::Add) updated.push_back(use.buffer);
      pieces = std::max(pieces, pieces_of(worker, buffer).first);
    }
    for (const uint32_t b : updated) {
      const Buffer& buffer = rank_of(worker).buffers[b];
      const bool state = buffer.role == Role::OptimizerState;
      std::vector<Symbol> shards = load_shards(worker, b);
      for (uint16_t s = 0; s < dp_; ++s) {
        if ((shards.size() < dp_ || action.extent == Extent::Owned) && !is_own(worker, s)) continue;
        Symbol& here = shards[at(shards, worker, s)];
        const Symbol of = gradient[at(gradient, worker, s)];
        here = all_at_once || pieces_of(worker, buffer).first > 0
                   ? symbols_.of(state ? "next state" : "next", {here, of, scalars})
                   : piece_updated(here, of, scalars, action.piece, pieces);
      }
      store(worker, b, symbols_.array(shards));
    }
  }

  void collect(Outcome& outcome) {
    std::map<std::pair<bool, uint16_t>, std::vector<Symbol>> arrays;
    const auto agree = [&](Symbol& known, Symbol now, const std::string& what) {
      if (known != unseen && known != now)
        outcome.disagreement += fmt::format("{}: {} or {}\n", what, symbols_.text(known), symbols_.text(now));
      known = now;
    };
    for (const Worker& worker : workers_) {
      const RankProgram& rank = rank_of(worker);
      for (uint32_t b = 0; b < rank.buffers.size(); ++b) {
        const Buffer& buffer = rank.buffers[b];
        if (buffer.role == Role::Scalars) agree(outcome.scalars, load(worker, b), "scalars");
        if (!buffer.resident || !(is_parameters(buffer.role) || buffer.role == Role::OptimizerState)) continue;
        const bool state = buffer.role == Role::OptimizerState;
        const std::vector<Symbol> shards = load_shards(worker, b);
        std::vector<Symbol>& array = arrays[{state, buffer.index}];
        array.resize(dp_, unseen);
        for (uint16_t s = 0; s < dp_; ++s)
          if (shards.size() == dp_ || is_own(worker, s))
            agree(array[s], shards[at(shards, worker, s)],
                  fmt::format("rank {} replica {}: g{} shard {}", worker.rank, worker.replica, buffer.index, s));
      }
    }
    for (const auto& [key, shards] : arrays)
      (key.first ? outcome.optimizer_states : outcome.parameters)[key.second] = symbols_.array(shards);
  }

  const Program& program_;
  const StepShape& shape_;
  uint16_t dp_, copies_;
  Symbols& symbols_;
  std::vector<Worker> workers_;
};

inline Outcome interpret(const Program& program, const StepShape& shape, Symbols& symbols, uint32_t seed,
                         bool one_lane = false) {
  std::mt19937 random(seed);
  return Interpreter(program, shape, symbols).run(random, one_lane);
}

}  // namespace shardpipe
