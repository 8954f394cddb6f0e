// Is a schedule one that can run, whole and without end? Every rule, on the schedule alone: no model, no costs.
//
//   placement     every chunk is on a rank that there is, every rank has a chunk, every cell is on its chunk's rank
//   once          each chunk runs each micro-batch forward once, and backward once: whole, or its two parts
//   order         on its rank a backward stands behind its forward, a weight part behind its input part
//   accumulation  a chunk adds up its gradients (Backward, BackwardWeight) in ascending order of micro-batches, so that
//                 sums have the same bits in every schedule
//   pair          cells that run together are two, and one of them is a forward
//   deadlock      no rank waits for ever; else the ranks that wait for each other are told, all the way round
//
// and of one whose movement is written out:
//   message       what crosses ranks is sent once and received once; nothing else is
//   parameters    where one chunk unshards, each computes only between its Unshard and Reshard; a weight part needs no
//                 parameters
//   reduction     where one chunk reduces its gradients, each does, behind the last that it adds
//   deadlock      as above, of passes, sends and receives, under the channel model
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "schedules/lowered.h"
#include "schedules/schedule.h"

namespace shardpipe {

struct ScheduleProblem {
  std::string rule;  // "once"
  int rank;          // where it is; -1: of the whole schedule
  int position;      // index in the rank's list; -1: of something that is not there
  std::string text;  // "the forward of chunk 1 for micro-batch 3 is missing"
  bool operator==(const ScheduleProblem&) const = default;
};
std::string to_string(const ScheduleProblem&);  // "rank 1, cell 5: …"; cells are counted from 1, as a person does

// Empty: the schedule can run. A deadlock is looked for only where no other rule is broken.
std::vector<ScheduleProblem> problems_of(const Schedule&);

// What carries messages between ranks. What passes under one model passes under every model with more lanes and more
// capacity: {1, 0} is the strictest, and what passes it hangs on no transport.
struct LoweredChannels {
  // Queues of a rank, each of which does its actions one after the other, in the rank's order:
  //   1: one for passes and messages alike    2: passes, sends, receives    4: passes, and sends and receives of each
  //   direction. Messages between two ranks that share queues at both ends arrive in the order in which they were sent.
  int lanes = 1;
  // Messages that a sender may be ahead of their receiver, in each such channel. 0: rendezvous, a send ends only
  // together with its receive.
  int capacity = 0;
};
// InvariantError where lanes is none of the three or capacity negative.
std::vector<ScheduleProblem> problems_of(const LoweredSchedule&, LoweredChannels);

// Of each rank, the most pairs of chunk and micro-batch at any time whose forward has run and whose backward, or its
// weight part, has not ended. Requires a schedule without problems.
std::vector<uint32_t> peak_in_flight(const Schedule&);

}  // namespace shardpipe
