// V-Half and V-Min (Qi et al., Pipeline Parallelism with Controllable Memory, arXiv:2405.15362): two chunks a rank in a
// V, a half and a third of the activations of 1F1B. A micro-batch's passes form one building block, repeated every six
// passes, the work of a rank for a micro-batch. The longer it dwells on its way, the more of them are under way at
// once: in V-Min it goes from rank to rank at once, in V-Half every second leg rests for a pass at each rank.
//
//   leg                  down, forward   up, forward   down, backward   up, backward
//   passes a rank        1 or 2          1             1 or 2           1
//
// The block gives each rank an order of its forwards and one of its backwards. How they mix, and where the weight parts
// go, follows from the costs: of what can begin first, an input part before a forward, a weight part where it fits
// before them; a forward only while the rank holds less than its limit. This cannot get stuck: of the passes that are
// left, the one that the repeated block has first can always run.
#include <algorithm>
#include <array>
#include <deque>
#include <optional>

#include "base/error.h"
#include "schedules/v_shape.h"

namespace shardpipe {
namespace {

// In passes. Only the order that follows from it counts, not the time itself.
struct BuildingBlock {
  std::array<int, 4> per_rank;  // from one rank to the next: down and up, forward; down and up, backward
  double rest;                  // at rank p-1, where a leg turns upwards
};

struct Turn {
  int leg;
  uint16_t micro_batch;
};

// The order in which this rank runs forwards, or input parts.
std::vector<Turn> order_of(Pass pass, const BuildingBlock& block, int rank, int ranks, int micro_batches) {
  constexpr int period = 6;
  std::array<double, 4> begin{};  // of the first micro-batch on this rank, by leg
  double time = 0;
  for (size_t leg = 0; leg < 4; ++leg) {
    const bool down = leg % 2 == 0;
    begin[leg] = time + block.per_rank[leg] * (down ? rank : ranks - 1 - rank);
    time += block.per_rank[leg] * (ranks - 1) + 1 + (down ? block.rest : 0);
  }
  struct Planned {
    double time;
    Turn turn;
  };
  std::vector<Planned> planned;
  for (uint16_t m = 0; m < micro_batches; ++m)
    for (int leg = 0; leg < legs; ++leg)
      planned.push_back({begin[static_cast<size_t>(pass == Pass::Forward ? leg : 2 + leg)] + period * m, Turn{leg, m}});
  std::ranges::stable_sort(planned, {}, &Planned::time);
  std::vector<Turn> turns;
  for (const Planned& one : planned) turns.push_back(one.turn);
  return turns;
}

class Mixer {
 public:
  Mixer(std::string name, const ScheduleRequest& request, const BuildingBlock& block, int limit)
      : ranks_(request.ranks),
        micro_batches_(request.micro_batches),
        limit_(limit),
        costs_(request.costs),
        schedule_(empty_v_schedule(std::move(name), request)),
        forward_ended_(size_t{schedule_.chunks} * micro_batches_, not_yet),
        input_ended_(forward_ended_),
        states_(ranks_) {
    for (int rank = 0; rank < ranks_; ++rank) {
      State& state = states_[static_cast<size_t>(rank)];
      state.forwards = order_of(Pass::Forward, block, rank, ranks_, micro_batches_);
      state.inputs = order_of(Pass::BackwardInput, block, rank, ranks_, micro_batches_);
    }
  }

  Schedule run() && {
    const size_t passes = size_t{3} * schedule_.chunks * micro_batches_;
    for (size_t placed = 0; placed < passes; ++placed) {
      std::optional<Choice> first;  // over ranks: what a rank does can let another do more, but not earlier
      uint16_t on = 0;
      for (uint16_t rank = 0; rank < ranks_; ++rank)
        if (const auto choice = choose(rank); choice && (!first || choice->begin < first->begin)) {
          first = choice;
          on = rank;
        }
      check_invariant(first.has_value(), "{} of {} ranks, {} micro-batches: all wait after {} passes", schedule_.name,
                      ranks_, micro_batches_, placed);
      place(*first, on);
    }
    return std::move(schedule_);
  }

 private:
  static constexpr double not_yet = -1;
  struct Choice {
    Pass pass;
    double begin;
  };
  struct State {
    double now = 0;
    int held = 0;                        // activations of a chunk: from forward to weight part
    std::vector<Turn> forwards, inputs;  // in order
    size_t next_forward = 0, next_input = 0;
    std::deque<Cell> weights;  // that wait
  };

  size_t index(size_t chunk, uint16_t micro_batch) const { return chunk * micro_batches_ + micro_batch; }
  double arrives(double sent, size_t from, size_t to) const {
    if (sent == not_yet || schedule_.rank_of_chunk[from] == schedule_.rank_of_chunk[to]) return sent;
    return sent + costs_.transfer;
  }

  std::optional<Choice> begin_of(Pass pass, const std::vector<Turn>& turns, size_t next, uint16_t rank) const {
    if (next == turns.size()) return std::nullopt;
    const auto [leg, m] = turns[next];
    const uint16_t chunk = v_chunk(pass, leg, rank, ranks_);
    double ready = 0;
    if (pass == Pass::Forward) {
      if (chunk > 0) ready = arrives(forward_ended_[index(chunk - 1u, m)], chunk - 1u, chunk);
    } else if (chunk + 1 == schedule_.chunks) {
      ready = forward_ended_[index(chunk, m)];
    } else {
      ready = arrives(input_ended_[index(chunk + 1u, m)], chunk + 1u, chunk);
    }
    if (ready == not_yet) return std::nullopt;
    return Choice{pass, std::max(states_[rank].now, ready)};
  }

  std::optional<Choice> choose(uint16_t rank) const {
    const State& state = states_[rank];
    std::optional<Choice> best = begin_of(Pass::BackwardInput, state.inputs, state.next_input, rank);
    if (state.held < limit_)
      if (const auto forward = begin_of(Pass::Forward, state.forwards, state.next_forward, rank);
          forward && (!best || forward->begin < best->begin))
        best = forward;
    if (!state.weights.empty() && (!best || state.now + costs_.backward_weight <= best->begin))
      best = Choice{Pass::BackwardWeight, state.now};
    return best;
  }

  void place(const Choice& choice, uint16_t rank) {
    State& state = states_[rank];
    Cell cell{choice.pass, 0, 0};
    if (choice.pass == Pass::BackwardWeight) {
      cell = state.weights.front();
      state.weights.pop_front();
      state.now = choice.begin + costs_.backward_weight;
      --state.held;
    } else {
      const bool forward = choice.pass == Pass::Forward;
      const auto [leg, m] = forward ? state.forwards[state.next_forward++] : state.inputs[state.next_input++];
      cell.chunk = v_chunk(choice.pass, leg, rank, ranks_);
      cell.micro_batch = m;
      state.now = choice.begin + (forward ? costs_.forward : costs_.backward_input);
      (forward ? forward_ended_ : input_ended_)[index(cell.chunk, m)] = state.now;
      if (forward) {
        ++state.held;
      } else {
        state.weights.push_back({Pass::BackwardWeight, cell.chunk, m});
      }
    }
    schedule_.by_rank[rank].push_back(cell);
  }

  const uint16_t ranks_, micro_batches_;
  const int limit_;
  const PassCosts costs_;
  Schedule schedule_;
  std::vector<double> forward_ended_, input_ended_;  // by chunk, then micro-batch
  std::vector<State> states_;
};

}  // namespace

// Without a rest, two forwards of a rank would fall on one place of the period where p is even, or divisible by 3.
Schedule v_half(const ScheduleRequest& request) {
  const BuildingBlock block{.per_rank = {2, 1, 2, 1}, .rest = request.ranks % 2 == 0 ? 2.5 : 0};
  return Mixer("v-half", request, block, 2 * ((request.ranks + 2) / 2)).run();
}

Schedule v_min(const ScheduleRequest& request) {
  const BuildingBlock block{.per_rank = {1, 1, 1, 1}, .rest = request.ranks % 3 == 0 ? 1.5 : 0};
  return Mixer("v-min", request, block, 2 * ((request.ranks + 4) / 3)).run();
}

}  // namespace shardpipe
