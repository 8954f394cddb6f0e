// Binds every action of a rank's program to a function: the same list for each machine, so that what is drawn, slept
// through, logged and computed is one program.
#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/store.h"
#include "model/blocks/blocks.h"
#include "program/compile.h"
#include "program/loss_scale.h"
#include "program/program.h"

namespace shardpipe {

using BoundAction = std::function<void()>;  // one a action, in their order; called once a step, allocates nothing

// What an optimizer step needs to know besides the gradients; the training loop changes it between steps.
struct StepSettings {
  bool adamw = true;  // else SGD without momentum
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double gradient_clip = 0;  // 0: none
  LossScaleSettings loss_scale{};
  DropoutDraw dropout{};        // of the step
  int64_t step = 0;             // 1, 2, …: for observers
  int64_t update = 0;           // 1, 2, …, without steps that were skipped: for the bias correction
  bool stop_requested = false;  // read on world rank 0 alone; all ranks learn of it in StepScalars::stop
};

// One rank's world, while a program is bound for it.
struct RankPlace {
  uint16_t pipeline_rank = 0, replica = 0;
  const std::vector<std::unique_ptr<Communicator>>* communicators =
      nullptr;             // by group of the program; null where not a member
  Store* store = nullptr;  // of the program's store_bytes; null where it has none
};

// Where a rank stands among all: replicas of a pipeline rank are neighbours.
inline int world_rank(const StepShape& shape, uint16_t pipeline_rank, uint16_t replica) {
  return static_cast<int>(pipeline_rank * shape.layout.dp + replica);
}
std::vector<int> members_of(const StepShape&, const Group&, uint16_t replica);  // world ranks, in the group's order

// Real arithmetic on the CPU over `arena`, which holds the program's arena_bytes. `highest_byte` becomes the end of the
// last byte of it that any function was given. All arguments outlive the functions.
std::vector<BoundAction> bind_cpu(const Program&, const StepShape&, const RankPlace&, const StepSettings&,
                                  std::byte* arena, uint64_t& highest_byte);

// Communication for real (of the bytes that lie in the arena), arithmetic as a pause of fixed length: measures bubbles
// and waits with the real executor where there are fewer cores than ranks.
using Duration = std::chrono::duration<double>;
std::vector<BoundAction> bind_sleep(const Program&, const StepShape&, const RankPlace&, std::byte* arena,
                                    const std::function<Duration(const Action&)>& duration);

// Each action appends its line to its lane's log and does nothing: for tests of what ran, in which order. logs has
// lane_count entries.
std::vector<BoundAction> bind_log(const Program&, const RankPlace&, std::vector<std::vector<std::string>>& logs);

}  // namespace shardpipe
