// How a transport carries the communication of a rank: how many queues it has, and whether a send waits for its
// receive. What check() assumes and simulate() prices; a program that ends under the strictest ends under all.
#pragma once
#include <cstdint>

#include "program/program.h"

namespace shardpipe {

// What shares a queue, which runs in issue order. From strict to free; a freer one only removes orders.
enum class ChannelLanes : uint8_t {
  OnePerRank,        // everything, arithmetic too: stricter than any transport
  Communication,     // all communication in one queue beside arithmetic: one NCCL stream
  SendsAndReceives,  // all sends in one, all receives in another; collectives on the program's lanes
  AsProgrammed,      // each lane of the program is a queue of its own: threads and streams of the executor
  OnePerMessage,     // a message holds up no other and no lane; arithmetic and collectives as programmed
};

struct ChannelModel {
  ChannelLanes lanes = ChannelLanes::OnePerRank;
  // Messages from one rank to another that are sent and not yet received. 0 is a rendezvous: send and receive begin and
  // end together. Else a send copies, which takes no time, and waits only while this many are under way.
  uint32_t send_capacity = 0;
  bool operator==(const ChannelModel&) const = default;
};
inline constexpr uint32_t unlimited_capacity = UINT32_MAX;

inline constexpr ChannelModel strictest_channels{};
inline constexpr ChannelModel executor_channels{ChannelLanes::AsProgrammed, 0};
// The convention of published figures: a message delays its reader and occupies nothing.
inline constexpr ChannelModel published_channels{ChannelLanes::OnePerMessage, unlimited_capacity};

// The queue of a rank in which actions of the lane stand, below lane_count; no_queue: each for itself.
inline constexpr int no_queue = -1;
constexpr int queue_of(ChannelLanes lanes, Lane lane) {
  const bool send = lane == Lane::SendForward || lane == Lane::SendBackward;
  const bool receive = lane == Lane::ReceiveForward || lane == Lane::ReceiveBackward;
  const bool store = lane == Lane::Fetch || lane == Lane::Offload;
  switch (lanes) {
    case ChannelLanes::OnePerRank:
      return 0;
    case ChannelLanes::Communication:
      return lane == Lane::Compute || store ? static_cast<int>(lane) : 1;
    case ChannelLanes::SendsAndReceives:
      return static_cast<int>(send ? Lane::SendForward : receive ? Lane::ReceiveForward : lane);
    case ChannelLanes::AsProgrammed:
      return static_cast<int>(lane);
    case ChannelLanes::OnePerMessage:
      return send || receive ? no_queue : static_cast<int>(lane);
  }
  return 0;
}

// Messages are what a capacity is for; everything else meets.
constexpr bool is_buffered(const ChannelModel& channels, const Action& action) {
  return channels.send_capacity > 0 && (action.kind == Kind::Send || action.kind == Kind::Receive);
}

}  // namespace shardpipe
