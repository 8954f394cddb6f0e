// When every action of a step would run, by the rules of the executor: each queue of a rank in issue order, an action
// after all its waits, members of a group together. The same Program that trains; its data-parallel replicas are alike,
// so one pipeline rank stands for all of them and the work does not grow with their number.
//
// A span here is the work itself: from when all members of a group have come until it is done. A measured span begins
// when its lane comes to the action, and holds the wait for the others too.
#pragma once
#include <vector>

#include "program/channels.h"
#include "program/costs.h"
#include "program/timeline.h"

namespace shardpipe {

// One timeline a pipeline rank, beginning at 0. Requires a program in which check() finds nothing with these channels;
// InvariantError with the cycle where it waits for ever. Deterministic.
//
// Buffered channels (send_capacity > 0): a send ends where it begins. Its message crosses after the one before it from
// the same queue and the receive ends when it has arrived, but not before its own turn.
std::vector<Timeline> simulate(const Program&, const CostModel&, const ChannelModel& = executor_channels);

}  // namespace shardpipe
