// One rank while it trains: its arena, its communicators, its lanes. Made, used and destroyed on the rank's own thread;
// all ranks of a world do the same calls in the same order.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/local/local_world.h"
#include "device/arena.h"
#include "device/store.h"
#include "engine/bind.h"
#include "engine/lanes.h"
#include "engine/machine.h"
#include "program/compile.h"
#include "program/slots.h"

namespace shardpipe {

// What all ranks share, made once: the programs of a training step and of an evaluation.
struct Step {
  StepShape shape;
  Program training;
  StepShape evaluation_shape;
  Program evaluation;  // forwards only, over the same resident buffers
};
Step make_step(const Model&, const Layout&, uint64_t optimizer_states_per_element);

RankPlace place_of(const StepShape&, int world_rank);  // its communicators are still to be joined

// By group of the program; null where the rank is no member. All members join at the same time.
std::vector<std::unique_ptr<Communicator>> join_groups(const Program&, const StepShape&, const RankPlace&, LocalWorld&,
                                                       std::string_view name);

// Called after an action has run, on its lane's thread: how `verify` and the tests look into a step.
using Observer = std::function<void(int64_t step, const Action&, const RankProgram&, std::byte* arena)>;

// Fills elements [first, first + count) of a parameter group, padding with 0. Called by all ranks at once.
using InitialParameters = std::function<void(const ParameterGroup&, uint64_t first, uint64_t count, float* out)>;

// Where a value that is not finite first appeared in a step, of all ranks: in the order of the data, forwards before
// backwards.
struct NonFinite {
  bool backward = false;
  uint16_t micro_batch = 0, block = 0;  // in its output, or in the gradients that it gave
  int world_rank = 0;
};

class Rank {
 public:
  // step outlives the rank. The arena is allocated and touched here, and the store, if the program has one: in host
  // memory, or in a file of the directory. InputError with the bytes when one cannot be had.
  Rank(const Step& step, LocalWorld& world, int world_rank, Observer observer = nullptr,
       const std::filesystem::path& store_directory = {});

  const Model& model() const { return *step_.shape.model; }
  int world_rank() const { return world_rank_; }
  uint16_t pipeline_rank() const { return place_.pipeline_rank; }
  uint16_t replica() const { return place_.replica; }

  void initialise(const InitialParameters&);  // once: optimizer states are 0, the loss scale as settings say
  void initialise(uint64_t seed);             // from the seed

  // [batch, sequence] of a micro-batch, to be filled before a step; empty on a rank that does not read it.
  std::span<int32_t> tokens(uint16_t micro_batch);
  std::span<int32_t> targets(uint16_t micro_batch);

  StepSettings settings;  // read by initialise and train_step

  const StepScalars& train_step();
  const StepScalars& evaluate();  // loss and tokens alone

  // Does the last step, which must have been skipped, once more and looks at what every block gives. All ranks must
  // call.
  std::optional<NonFinite> find_non_finite();

  // Calls visit(tensor, values) for every tensor of the parameter groups that live here, in canonical order; a tensor
  // is visited on every rank that holds it. All replicas must call: sharded groups are gathered, one at a time.
  void visit_parameters(const std::function<void(const Tensor&, std::span<const float>)>& visit);

  const Timeline& last_timeline() const { return timeline_; }  // of the newest train_step
  uint64_t arena_bytes() const { return arena_.size(); }       // allocated
  uint64_t highest_byte() const { return highest_byte_; }      // the end of the last byte that an action was given
  WireBytes wire_bytes() const;                                // sent by this rank so far
  const Store* store() const { return store_.get(); }          // null: the program has none

 private:
  // A program bound for this rank.
  struct Bound {
    std::vector<std::unique_ptr<Communicator>> communicators;  // by group; null where not a member
    std::unique_ptr<Machine> machine;
    StepScalars* scalars = nullptr;
  };
  Bound bind(const Program&, const StepShape&, std::string_view name, LocalWorld&, bool observed);
  void inspect(const Action&);
  // Between steps what is not resident in the arena is free. A whole gradient of any group here has its place there.
  std::span<float> scratch_floats(uint64_t count) const;
  std::vector<const Buffer*> state(Role, uint16_t index) const;  // of a parameter group: one buffer, or its pieces
  std::span<int32_t> input(Role, uint16_t micro_batch);

  const Step& step_;
  const RankProgram& program_;
  int world_rank_;
  RankPlace place_;
  Observer observer_;
  Arena arena_;
  std::unique_ptr<Store> store_;
  uint64_t highest_byte_ = 0;
  std::unique_ptr<LaneStreams> lanes_;
  Bound training_, evaluation_;
  std::unique_ptr<Communicator> replicas_;  // for visit_parameters
  std::unique_ptr<Communicator> everyone_;  // for find_non_finite
  bool inspecting_ = false;
  std::optional<NonFinite> non_finite_;  // the first here, while inspecting
  Timeline timeline_, evaluation_timeline_;
};

}  // namespace shardpipe
