// A schedule with its data movement written out, as PyTorch's pipelining runtime executes it: sends, receives, gathers
// and reductions stand between the passes, in the order in which a rank starts them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "schedules/schedule.h"

namespace shardpipe {

enum class LoweredKind : uint8_t {
  Forward,
  Backward,
  BackwardInput,
  BackwardWeight,
  Unshard,          // gathers the chunk's parameters
  Reshard,          // gives the gathered copy up
  ReduceGrad,       // reduces the chunk's gradients over the replicas
  SendForward,      // the chunk's output, to the chunk after it
  ReceiveForward,   // the chunk's input, from the chunk before it
  SendBackward,     // the gradient of its input, to the chunk before it
  ReceiveBackward,  // the gradient of its output, from the chunk after it
};

constexpr uint16_t every_micro_batch = UINT16_MAX;

struct LoweredAction {
  LoweredKind kind;
  uint16_t chunk;
  uint16_t micro_batch = every_micro_batch;  // Unshard, Reshard and ReduceGrad are of a chunk, not of a micro-batch
  bool with_next = false;                    // of a pass, as Cell::with_next
  bool operator==(const LoweredAction&) const = default;
};

struct LoweredSchedule {
  std::string name;
  uint16_t chunks = 0;
  uint16_t micro_batches = 0;
  std::vector<uint16_t> rank_of_chunk;
  std::vector<std::vector<LoweredAction>> by_rank;
  bool operator==(const LoweredSchedule&) const = default;
};

constexpr bool is_pass(LoweredKind kind) { return kind <= LoweredKind::BackwardWeight; }
constexpr bool is_send(LoweredKind kind) {
  return kind == LoweredKind::SendForward || kind == LoweredKind::SendBackward;
}
constexpr bool is_receive(LoweredKind kind) {
  return kind == LoweredKind::ReceiveForward || kind == LoweredKind::ReceiveBackward;
}

std::string to_string(const LoweredAction&);  // "0F3", "2SEND_F1", "0UNSHARD"

// The passes alone.
Schedule without_movement(const LoweredSchedule&);

// The passes as they are, no movement.
LoweredSchedule without_messages(const Schedule&);

// Where a message's two ends stand in their ranks' orders.
enum class Messages : uint8_t {
  AtUse,     // the send after what makes it, the receive before what needs it
  WhenMade,  // both when the sender has made it, ranks taking turns: the order in which PyTorch lowers
};
// Adds the sends and receives between chunks of different ranks. InvariantError where WhenMade meets a schedule whose
// ranks wait for each other for ever.
LoweredSchedule with_messages(const Schedule&, Messages);

}  // namespace shardpipe
