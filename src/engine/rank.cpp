#include "engine/rank.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "engine/bind_comm.h"
#include "model/blocks/blocks.h"

namespace shardpipe {

Step make_step(const Model& model, const Layout& layout, uint64_t optimizer_states_per_element) {
  Step step{.shape = step_shape(model, layout, optimizer_states_per_element),
            .training = {},
            .evaluation_shape = {},
            .evaluation = {}};
  step.training = compile(step.shape);
  step.evaluation_shape = evaluation_shape(step.shape, step.training);
  step.evaluation = compile(step.evaluation_shape);
  step.evaluation_shape.resident = nullptr;  // it pointed into this value, which moves
  return step;
}

RankPlace place_of(const StepShape& shape, int world_rank) {
  return {.pipeline_rank = static_cast<uint16_t>(world_rank / shape.layout.dp),
          .replica = static_cast<uint16_t>(world_rank % shape.layout.dp),
          .communicators = nullptr};
}

std::vector<std::unique_ptr<Communicator>> join_groups(const Program& program, const StepShape& shape,
                                                       const RankPlace& place, LocalWorld& world,
                                                       std::string_view name) {
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (const Group& group : program.groups) {
    const bool member = std::ranges::find(group.pipeline_ranks, place.pipeline_rank) != group.pipeline_ranks.end();
    communicators.push_back(member ? world.join(fmt::format("{} {}", name, group.name),
                                                members_of(shape, group, place.replica),
                                                world_rank(shape, place.pipeline_rank, place.replica))
                                   : nullptr);
  }
  return communicators;
}

namespace {

const Buffer* find(const RankProgram& program, Role role, uint16_t index, uint16_t micro_batch) {
  for (const Buffer& buffer : program.buffers)
    if (buffer.role == role && buffer.index == index && buffer.micro_batch == micro_batch && buffer.copy == 0)
      return &buffer;
  return nullptr;
}

}  // namespace

Rank::Rank(const Step& step, LocalWorld& world, int world_rank, Observer observer)
    : step_(step),
      program_(step.training.by_pipeline_rank[place_of(step.shape, world_rank).pipeline_rank]),
      world_rank_(world_rank),
      place_(place_of(step.shape, world_rank)),
      observer_(std::move(observer)),
      arena_(std::max(program_.arena_bytes, step.evaluation.by_pipeline_rank[place_.pipeline_rank].arena_bytes)) {
  training_ = bind(step.training, step.shape, "train", world, observer_ != nullptr);
  evaluation_ = bind(step.evaluation, step.evaluation_shape, "evaluate", world, false);
  const std::vector<int> members =
      members_of(step.shape, {.name = "", .pipeline_ranks = {place_.pipeline_rank}, .replicas = true}, place_.replica);
  replicas_ = world.join(fmt::format("parameters {}", place_.pipeline_rank), members, world_rank);
  timeline_.reserve(program_.actions.size());
  evaluation_timeline_.reserve(step.evaluation.by_pipeline_rank[place_.pipeline_rank].actions.size());
}

Rank::Bound Rank::bind(const Program& program, const StepShape& shape, std::string_view name, LocalWorld& world,
                       bool observed) {
  Bound bound;
  bound.communicators = join_groups(program, shape, place_, world, name);
  RankPlace place = place_;
  place.communicators = &bound.communicators;
  std::vector<BoundAction> actions = bind_cpu(program, shape, place, settings, arena_.at(0), highest_byte_);
  const RankProgram& rank = program.by_pipeline_rank[place_.pipeline_rank];
  if (observed)
    for (size_t i = 0; i < actions.size(); ++i)
      actions[i] = [function = std::move(actions[i]), &action = rank.actions[i], &rank, this] {
        function();
        observer_(settings.step, action, rank, arena_.at(0));
      };
  bound.machine = std::make_unique<LaneMachine>(
      rank, std::move(actions), fmt::format("r{}", world_rank_),
      [&world, this](const std::exception_ptr& error) { world.abort(error, world_rank_); });
  const Buffer* scalars = find(rank, Role::Scalars, none, none);
  bound.scalars = reinterpret_cast<StepScalars*>(arena_.at(0) + scalars->offset);
  return bound;
}

void Rank::initialise(uint64_t seed) {
  initialise([seed](const ParameterGroup& group, uint64_t first, uint64_t count, float* out) {
    shardpipe::initialise(group, seed, first, count, out);
  });
}

void Rank::initialise(const InitialParameters& initial) {
  std::memset(arena_.at(0), 0, arena_.size());
  for (const Buffer& buffer : program_.buffers) {
    if (!buffer.resident || (buffer.role != Role::Parameters && buffer.role != Role::Shard)) continue;
    auto* out = reinterpret_cast<float*>(arena_.at(0) + buffer.offset);
    const uint64_t count = buffer.bytes / sizeof(float);
    const uint64_t first =
        buffer.role == Role::Shard ? place_.replica * step_.shape.shards_of(buffer.index).shard_elements : 0;
    initial(step_.shape.model->groups[buffer.index], first, count, out);
  }
}

std::span<int32_t> Rank::input(Role role, uint16_t micro_batch) {
  const Buffer* buffer = find(program_, role, none, micro_batch);
  if (buffer == nullptr) return {};
  return {reinterpret_cast<int32_t*>(arena_.at(0) + buffer->offset), buffer->bytes / sizeof(int32_t)};
}
std::span<int32_t> Rank::tokens(uint16_t micro_batch) { return input(Role::Tokens, micro_batch); }
std::span<int32_t> Rank::targets(uint16_t micro_batch) { return input(Role::Targets, micro_batch); }

const StepScalars& Rank::train_step() {
  execute(program_, *training_.machine, timeline_);
  return *training_.scalars;
}

const StepScalars& Rank::evaluate() {
  execute(step_.evaluation.by_pipeline_rank[place_.pipeline_rank], *evaluation_.machine, evaluation_timeline_);
  return *evaluation_.scalars;
}

void Rank::visit_parameters(const std::function<void(const Tensor&, std::span<const float>)>& visit) {
  const Model& model = *step_.shape.model;
  for (uint16_t g = 0; g < model.groups.size(); ++g) {
    const Buffer* shard = find(program_, Role::Shard, g, none);
    const Buffer* whole = shard != nullptr ? nullptr : find(program_, Role::Parameters, g, none);
    if (shard == nullptr && whole == nullptr) continue;
    std::vector<float> gathered;
    std::span<const float> values;
    if (shard != nullptr) {
      gathered.resize(step_.shape.shards_of(g).padded_elements());
      replicas_->all_gather(
          {reinterpret_cast<const float*>(arena_.at(0) + shard->offset), shard->bytes / sizeof(float)}, gathered);
      values = gathered;
    } else {
      values = {reinterpret_cast<const float*>(arena_.at(0) + whole->offset), whole->bytes / sizeof(float)};
    }
    for (const Tensor& tensor : model.groups[g].tensors) visit(tensor, values.subspan(tensor.offset, tensor.elements));
  }
}

WireBytes Rank::wire_bytes() const {
  WireBytes sum;
  for (const Bound* bound : {&training_, &evaluation_})
    for (const auto& communicator : bound->communicators) {
      if (communicator == nullptr) continue;
      const WireBytes& bytes = communicator->wire_bytes();
      sum.send += bytes.send;
      sum.all_gather += bytes.all_gather;
      sum.reduce_scatter += bytes.reduce_scatter;
      sum.all_reduce += bytes.all_reduce;
      sum.scalar_all_reduce += bytes.scalar_all_reduce;
      sum.broadcast += bytes.broadcast;
    }
  return sum;
}

}  // namespace shardpipe
