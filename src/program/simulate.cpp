#include "program/simulate.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "program/progress.h"

namespace shardpipe {
namespace {

// Nothing is interrupted, so the begin of an action is the latest end of what it waits for, and any order in which that
// comes first gives the same times: no clock ticks and no queue of events is needed.
class Simulation {
 public:
  Simulation(const Program& program, const CostModel& costs, const ChannelModel& channels)
      : program_(program), costs_(costs), channels_(channels), free_(program.by_pipeline_rank.size()) {
    for (const RankProgram& rank : program.by_pipeline_rank) timelines_.emplace_back(rank.actions.size());
    if (channels.send_capacity > 0) messages_.resize(program.groups.size());
  }

  std::vector<Timeline> result() {
    const Progress order = progress(program_, channels_);
    check_invariant(order.waits_for_ever.empty(), "a program that waits for ever has no times: {}",
                    order.waits_for_ever);
    for (size_t e = 0; e < order.event_ends.size(); ++e) {
      const std::span<const ActionPlace> members = order.event(e);
      if (is_buffered(channels_, action(members[0])))
        message(members[0]);
      else
        together(members);
    }
    return std::move(timelines_);
  }

 private:
  struct Queues {
    std::array<double, lane_count> free{};       // from when on a queue can begin its next action
    std::array<double, lane_count> link_free{};  // the next message of it
  };
  // Of one turn in a group of buffered messages.
  struct Message {
    double departs = 0, arrives = 0, received = 0;
  };

  const Action& action(ActionPlace at) const { return program_.by_pipeline_rank[at.rank].actions[at.action]; }
  double seconds(ActionPlace at) const { return seconds_of(costs_, program_, at.rank, action(at)); }

  double ready(ActionPlace at) const {
    const RankProgram& rank = program_.by_pipeline_rank[at.rank];
    const int queue = queue_of(channels_.lanes, action(at).lane);
    double time = queue == no_queue ? 0 : free_[at.rank].free[static_cast<size_t>(queue)];
    for (uint32_t w = 0; w < action(at).wait_count; ++w)
      time = std::max(time, timelines_[at.rank][rank.waits[action(at).first_wait + w]].end_seconds);
    return time;
  }

  void run(ActionPlace at, double begin, double end) {
    timelines_[at.rank][at.action] = {begin, end};
    const int queue = queue_of(channels_.lanes, action(at).lane);
    if (queue != no_queue) free_[at.rank].free[static_cast<size_t>(queue)] = end;
  }

  void together(std::span<const ActionPlace> members) {
    double begin = 0, duration = 0;
    for (const ActionPlace at : members) {
      begin = std::max(begin, ready(at));
      duration = std::max(duration, seconds(at));
    }
    for (const ActionPlace at : members) run(at, begin, begin + duration);
  }

  void message(ActionPlace at) {
    std::vector<Message>& messages = messages_[action(at).group];
    const size_t turn = action(at).sequence;
    if (messages.size() <= turn) messages.resize(turn + 1);
    double begin = ready(at);
    if (action(at).kind == Kind::Receive) {
      const double end = std::max(begin, messages[turn].arrives);
      messages[turn].received = end;
      run(at, std::min(end, std::max(begin, messages[turn].departs)), end);
      return;
    }
    if (turn >= channels_.send_capacity) begin = std::max(begin, messages[turn - channels_.send_capacity].received);
    double departs = begin;
    const int queue = queue_of(channels_.lanes, action(at).lane);
    if (queue != no_queue) {
      double& link_free = free_[at.rank].link_free[static_cast<size_t>(queue)];
      departs = std::max(departs, link_free);
      link_free = departs + seconds(at);
    }
    messages[turn].departs = departs;
    messages[turn].arrives = departs + seconds(at);
    run(at, begin, begin);
  }

  const Program& program_;
  const CostModel& costs_;
  const ChannelModel channels_;
  std::vector<Timeline> timelines_;
  std::vector<Queues> free_;                    // by rank
  std::vector<std::vector<Message>> messages_;  // by group and turn
};

}  // namespace

std::vector<Timeline> simulate(const Program& program, const CostModel& costs, const ChannelModel& channels) {
  return Simulation(program, costs, channels).result();
}

}  // namespace shardpipe
