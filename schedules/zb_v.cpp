// ZB-V, no bubble in the memory of 1F1B (Qi et al., Zero Bubble Pipeline Parallelism, arXiv:2401.10241, section 6): two
// chunks a rank in a V, so the rank that begins a micro-batch is the one that first has its backward. Here placed by
// costs, in rounds:
//
//   warm-up   rank r does 2(p-r)-1 forwards of leg 0, then r times one of each leg, then one of leg 1: 2p in all, which
//             is what a rank may hold, p micro-batches of two chunks
//   a round   each rank from 0 to p-1 does one input part, then each does one forward: of leg 1 where its message has
//             been sent, else of leg 0
//   between   weight parts that wait fill a gap before a cell, if they fit, or if the rank has idled less so far than
//             the one that has idled most; and they run when a forward needs the memory that they hold
#include <algorithm>
#include <array>
#include <deque>
#include <optional>

#include "base/error.h"
#include "schedules/v_shape.h"

namespace shardpipe {
namespace {

class Rounds {
 public:
  explicit Rounds(const ScheduleRequest& request)
      : ranks_(request.ranks),
        micro_batches_(request.micro_batches),
        costs_(request.costs),
        schedule_(empty_v_schedule("zb-v", request)),
        states_(request.ranks) {
    for (auto& of_pass : ended_)
      for (auto& of_leg : of_pass) of_leg.assign(size_t{ranks_} * micro_batches_, not_yet);
  }

  Schedule run() && {
    warm_up();
    const size_t all = size_t{2} * schedule_.chunks * micro_batches_;  // forwards and input parts
    while (placed_ < all) {
      const size_t before = placed_;
      for (const Pass pass : {Pass::BackwardInput, Pass::Forward})
        for (uint16_t rank = 0; rank < ranks_; ++rank)
          if (const auto leg = next_leg(pass, rank)) {
            if (pass == Pass::Forward)
              while (states_[rank].held == 2 * ranks_) place_weight(rank);
            fill_gap(pass, *leg, rank);
            place(pass, *leg, rank);
          }
      check_invariant(placed_ > before, "zb-v of {} ranks, {} micro-batches: a round placed nothing", ranks_,
                      micro_batches_);
    }
    for (uint16_t rank = 0; rank < ranks_; ++rank)
      while (!states_[rank].put_off.empty()) place_weight(rank);
    return std::move(schedule_);
  }

 private:
  static constexpr double not_yet = -1;
  struct PutOff {
    uint16_t chunk, micro_batch;
  };
  struct State {
    double now = 0, idle = 0;
    std::array<std::array<uint16_t, legs>, 2> done{};  // by direction and leg
    std::deque<PutOff> put_off;                        // weight parts
    int held = 0;                                      // activations of a chunk: from forward to weight part
  };

  static size_t direction(Pass pass) { return pass == Pass::Forward ? 0 : 1; }
  double& ended(Pass pass, int leg, int rank, int micro_batch) {
    return ended_[direction(pass)][static_cast<size_t>(leg)][static_cast<size_t>(rank * micro_batches_ + micro_batch)];
  }
  uint16_t done(Pass pass, int leg, uint16_t rank) const {
    return states_[rank].done[direction(pass)][static_cast<size_t>(leg)];
  }

  // From when on the rank has what its next pass on this leg needs; not_yet where that has not been placed.
  double arrival(Pass pass, int leg, uint16_t rank) {
    const uint16_t micro_batch = done(pass, leg, rank);
    if (leg == 1 && rank + 1 == ranks_) return ended(pass, 0, rank, micro_batch);
    if (leg == 0 && rank == 0) return pass == Pass::Forward ? 0 : ended(Pass::Forward, 1, rank, micro_batch);
    const double sent = ended(pass, leg, leg == 0 ? rank - 1 : rank + 1, micro_batch);
    return sent == not_yet ? not_yet : sent + costs_.transfer;
  }

  void warm_up() {
    std::vector<std::deque<int>> of_rank(ranks_);
    for (uint16_t rank = 0; rank < ranks_; ++rank) {
      std::deque<int>& order = of_rank[rank];
      order.assign(static_cast<size_t>(2 * (ranks_ - rank) - 1), 0);
      for (uint16_t i = 0; i < rank; ++i) order.insert(order.end(), {1, 0});
      order.push_back(1);
      std::array<int, legs> count{};
      std::erase_if(order, [&](int leg) { return ++count[static_cast<size_t>(leg)] > micro_batches_; });
    }
    for (bool placed = true; placed;) {
      placed = false;
      for (uint16_t rank = 0; rank < ranks_; ++rank)
        while (!of_rank[rank].empty() && arrival(Pass::Forward, of_rank[rank].front(), rank) != not_yet) {
          place(Pass::Forward, of_rank[rank].front(), rank);
          of_rank[rank].pop_front();
          placed = true;
        }
    }
  }

  // nullopt: nothing of this direction is left, or nothing can come.
  std::optional<int> next_leg(Pass pass, uint16_t rank) {
    for (const int leg : {1, 0})
      if (done(pass, leg, rank) < micro_batches_ && arrival(pass, leg, rank) != not_yet) return leg;
    return std::nullopt;
  }

  void fill_gap(Pass pass, int leg, uint16_t rank) {
    State& state = states_[rank];
    const double begin = arrival(pass, leg, rank);
    while (!state.put_off.empty() && state.now + costs_.backward_weight <= begin) place_weight(rank);
    const double most_idle = std::ranges::max(states_, {}, &State::idle).idle;
    if (!state.put_off.empty() && state.idle + (begin - state.now) > most_idle) place_weight(rank);
  }

  void place(Pass pass, int leg, uint16_t rank) {
    State& state = states_[rank];
    const uint16_t micro_batch = done(pass, leg, rank), chunk = v_chunk(pass, leg, rank, ranks_);
    double begin = std::max(state.now, arrival(pass, leg, rank));
    if (schedule_.by_rank[rank].empty()) state.now = begin;  // to begin late is not to idle
    state.idle += begin - state.now;
    state.now = begin + (pass == Pass::Forward ? costs_.forward : costs_.backward_input);
    ended(pass, leg, rank, micro_batch) = state.now;
    ++state.done[direction(pass)][static_cast<size_t>(leg)];
    schedule_.by_rank[rank].push_back({pass, chunk, micro_batch});
    if (pass == Pass::Forward) {
      ++state.held;
    } else {
      state.put_off.push_back({chunk, micro_batch});
    }
    ++placed_;
  }

  void place_weight(uint16_t rank) {
    State& state = states_[rank];
    check_invariant(!state.put_off.empty(), "zb-v: rank {} has no weight part to make room with", rank);
    const auto [chunk, micro_batch] = state.put_off.front();
    state.put_off.pop_front();
    schedule_.by_rank[rank].push_back({Pass::BackwardWeight, chunk, micro_batch});
    state.now += costs_.backward_weight;
    --state.held;
  }

  const uint16_t ranks_, micro_batches_;
  const PassCosts costs_;
  Schedule schedule_;
  std::vector<State> states_;
  std::vector<double> ended_[2][legs];  // by direction and leg: of each rank, of each micro-batch
  size_t placed_ = 0;
};

}  // namespace

Schedule zb_v(const ScheduleRequest& request) { return Rounds(request).run(); }

}  // namespace shardpipe
