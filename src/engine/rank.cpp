#include "engine/rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "engine/bind_comm.h"
#include "model/blocks/blocks.h"
#include "model/shape/pieces.h"
#include "program/loss_scale.h"

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

// `values(begin, count, out)` gives fp32; `put(byte, bytes)` takes it as `dtype`, a piece at a time.
void fill(DType dtype, uint64_t count, const std::function<void(uint64_t begin, uint64_t count, float* out)>& values,
          const std::function<void(uint64_t byte, std::span<const std::byte>)>& put) {
  constexpr uint64_t piece = 1 << 14;  // small: the C library keeps what is freed
  std::vector<float> floats(std::min(count, piece));
  std::vector<std::byte> stored(floats.size() * bytes_of(dtype));
  for (uint64_t begin = 0; begin < count; begin += piece) {
    const uint64_t elements = std::min(piece, count - begin);
    values(begin, elements, floats.data());
    with_element(dtype, [&]<Element T>() {
      for (uint64_t i = 0; i < elements; ++i) {
        const T element = from_float<T>(floats[i]);
        std::memcpy(stored.data() + i * sizeof(T), &element, sizeof(T));
      }
    });
    put(begin * bytes_of(dtype), std::span(stored).first(elements * bytes_of(dtype)));
  }
}

const Buffer* find(const RankProgram& program, Role role, uint16_t index, uint16_t micro_batch) {
  for (const Buffer& buffer : program.buffers)
    if (buffer.role == role && buffer.index == index && buffer.micro_batch == micro_batch && buffer.copy == 0)
      return &buffer;
  return nullptr;
}

}  // namespace

Rank::Rank(const Step& step, LocalWorld& world, int world_rank, Observer observer,
           const std::filesystem::path& store_directory)
    : step_(step),
      program_(step.training.by_pipeline_rank[place_of(step.shape, world_rank).pipeline_rank]),
      world_rank_(world_rank),
      place_(place_of(step.shape, world_rank)),
      observer_(std::move(observer)),
      arena_(std::max(program_.arena_bytes, step.evaluation.by_pipeline_rank[place_.pipeline_rank].arena_bytes)) {
  if (program_.store_bytes > 0)
    store_ = store_directory.empty() ? make_host_store(program_.store_bytes)
                                     : make_file_store(store_directory, program_.store_bytes);
  const std::array programs{&program_, &step.evaluation.by_pipeline_rank[place_.pipeline_rank]};
  lanes_ = std::make_unique<LaneStreams>(
      programs, fmt::format("r{}", world_rank),
      [&world, world_rank](const std::exception_ptr& error) { world.abort(error, world_rank); });
  training_ = bind(step.training, step.shape, "train", world, true);
  evaluation_ = bind(step.evaluation, step.evaluation_shape, "evaluate", world, false);
  const std::vector<int> members =
      members_of(step.shape, {.name = "", .pipeline_ranks = {place_.pipeline_rank}, .replicas = step.shape.sharing()},
                 place_.replica);
  replicas_ = world.join(fmt::format("parameters {}", place_.pipeline_rank), members, world_rank);
  std::vector<int> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  everyone_ = world.join("everyone", all, world_rank);
  timeline_.reserve(program_.actions.size());
  evaluation_timeline_.reserve(step.evaluation.by_pipeline_rank[place_.pipeline_rank].actions.size());
}

Rank::Bound Rank::bind(const Program& program, const StepShape& shape, std::string_view name, LocalWorld& world,
                       bool observed) {
  Bound bound;
  bound.communicators = join_groups(program, shape, place_, world, name);
  RankPlace place = place_;
  place.communicators = &bound.communicators;
  place.store = store_.get();
  std::vector<BoundAction> actions = bind_cpu(program, shape, place, settings, arena_.at(0), highest_byte_);
  const RankProgram& rank = program.by_pipeline_rank[place_.pipeline_rank];
  if (observed)
    for (size_t i = 0; i < actions.size(); ++i)
      actions[i] = [function = std::move(actions[i]), &action = rank.actions[i], &rank, this] {
        function();
        if (observer_) observer_(settings.step, action, rank, arena_.at(0));
        if (inspecting_) inspect(action);
      };
  bound.machine = std::make_unique<LaneMachine>(rank, std::move(actions), *lanes_);
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
  const StepShape& shape = step_.shape;
  for (const Buffer& buffer : program_.buffers) {
    if (!buffer.resident) continue;
    if (buffer.role == Role::LossScale)
      *reinterpret_cast<LossScale*>(arena_.at(buffer.offset)) =
          initial_loss_scale(settings.loss_scale, shape.layout.global_batch_size * shape.micro_batch.sequence);
    const bool stored = buffer.role == Role::Parameters || buffer.role == Role::Shard;
    if (!stored && buffer.role != Role::Master) continue;
    const DType dtype = stored ? shape.micro_batch.dtype : DType::Float32;
    const uint64_t count = buffer.bytes / bytes_of(dtype);
    const Shards cut = shape.shards_of(buffer.index);
    const bool sharded = buffer.role == Role::Shard ||
                         (buffer.role == Role::Master && shape.residency[place_.pipeline_rank].optimizer_sharded);
    const uint64_t pieces_before = buffer.copy > 0 ? buffer.copy - uint64_t{1} : 0;  // of a master in the store
    const uint64_t first = (sharded ? shape.shard_index(place_.replica) * cut.shard_elements : 0) +
                           pieces_before * static_cast<uint64_t>(shape.layout.offload_piece);
    fill(
        dtype, count,
        [&](uint64_t begin, uint64_t elements, float* values) {
          initial(shape.model->groups[buffer.index], first + begin, elements, values);
        },
        [&](uint64_t byte, std::span<const std::byte> bytes) {
          if (buffer.stored)
            store_->write(buffer.offset + byte, bytes);
          else
            std::memcpy(arena_.at(buffer.offset + byte), bytes.data(), bytes.size());
        });
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

void Rank::inspect(const Action& action) {
  if (!is_compute(action.kind) || non_finite_) return;
  for (const Use& use : uses_of(program_, action)) {
    const Buffer& buffer = program_.buffers[use.buffer];
    const bool stored = buffer.role == Role::Activation || buffer.role == Role::ActivationGradient;
    if (use.access == Access::Read || !(stored || buffer.role == Role::Gradient || buffer.role == Role::Loss)) continue;
    const std::byte* const values = arena_.at(0) + buffer.offset;
    const DType dtype = stored ? step_.shape.micro_batch.dtype : DType::Float32;
    bool finite = true;
    if (buffer.role == Role::Loss)
      finite = std::isfinite(reinterpret_cast<const LossSlot*>(values)->loss);
    else
      with_element(dtype, [&]<Element T>() {
        for (uint64_t i = 0; i < buffer.bytes / sizeof(T); ++i)
          finite = finite && std::isfinite(to_float(reinterpret_cast<const T*>(values)[i]));
      });
    if (!finite)
      non_finite_ = {.backward = action.kind != Kind::Forward && action.kind != Kind::Recompute,
                     .micro_batch = action.micro_batch,
                     .block = action.index,
                     .world_rank = world_rank_};
  }
}

std::optional<NonFinite> Rank::find_non_finite() {
  non_finite_.reset();
  inspecting_ = true;
  train_step();
  inspecting_ = false;
  // Every rank writes its own finding, as numbers that doubles hold, and 0 for the others: a sum shows all to all.
  constexpr size_t fields = 4;
  std::vector<double> found(fields * static_cast<size_t>(everyone_->size()), 0.0);
  if (non_finite_) {
    double* const own = found.data() + fields * static_cast<size_t>(world_rank_);
    own[0] = 1;
    own[1] = non_finite_->backward ? 1 : 0;
    own[2] = non_finite_->micro_batch;
    own[3] = non_finite_->block;
  }
  everyone_->all_reduce(found);
  std::optional<NonFinite> first;
  const auto place = [](const NonFinite& at) {  // a backward goes down the blocks
    return std::tuple(at.backward, at.micro_batch, at.backward ? -int{at.block} : int{at.block});
  };
  for (int rank = 0; rank < everyone_->size(); ++rank) {
    const double* const of = found.data() + fields * static_cast<size_t>(rank);
    if (of[0] == 0) continue;
    const NonFinite at{.backward = of[1] != 0,
                       .micro_batch = static_cast<uint16_t>(of[2]),
                       .block = static_cast<uint16_t>(of[3]),
                       .world_rank = rank};
    if (!first || place(at) < place(*first)) first = at;
  }
  return first;
}

const StepScalars& Rank::evaluate() {
  execute(step_.evaluation.by_pipeline_rank[place_.pipeline_rank], *evaluation_.machine, evaluation_timeline_);
  return *evaluation_.scalars;
}

std::span<float> Rank::scratch_floats(uint64_t count) const {
  uint64_t end = 0;
  for (const Buffer& buffer : program_.buffers)
    if (buffer.resident && !buffer.stored) end = std::max(end, buffer.offset + buffer.bytes);
  end = (end + piece_alignment_bytes - 1) / piece_alignment_bytes * piece_alignment_bytes;
  check_invariant(end + count * sizeof(float) <= arena_.size(), "{} floats of scratch above {} of {} bytes", count, end,
                  arena_.size());
  return {reinterpret_cast<float*>(arena_.at(0) + end), count};
}

std::vector<const Buffer*> Rank::state(Role role, uint16_t index) const {
  std::vector<const Buffer*> found;
  for (const Buffer& buffer : program_.buffers)
    if (buffer.role == role && buffer.index == index && buffer.resident) found.push_back(&buffer);
  std::ranges::sort(found, {}, &Buffer::copy);
  return found;
}

void Rank::visit_parameters(const std::function<void(const Tensor&, std::span<const float>)>& visit) {
  const Model& model = *step_.shape.model;
  for (uint16_t g = 0; g < model.groups.size(); ++g) {
    std::vector<const Buffer*> fp32;  // whole, or this rank's shard
    for (const Role role : {Role::Master, Role::Shard, Role::Parameters})
      if (fp32.empty()) fp32 = state(role, g);
    if (fp32.empty()) continue;
    const uint64_t whole = step_.shape.shards_of(g).padded_elements();
    uint64_t bytes = 0;
    for (const Buffer* buffer : fp32) bytes += buffer->bytes;
    const uint64_t held = bytes / sizeof(float);
    std::span<const float> own(reinterpret_cast<const float*>(arena_.at(fp32.front()->offset)), held);
    std::span<float> gathered = scratch_floats((held < whole ? whole : 0) + (fp32.front()->stored ? held : 0));
    if (fp32.front()->stored) {
      std::span<std::byte> rest = std::as_writable_bytes(gathered.last(held));
      own = gathered.last(held);
      for (const Buffer* buffer : fp32) {
        store_->read(buffer->offset, rest.first(buffer->bytes));
        rest = rest.subspan(buffer->bytes);
      }
    }
    std::span<const float> values = own;
    if (held < whole) {
      gathered = gathered.first(whole);
      replicas_->all_gather(std::as_bytes(own), std::as_writable_bytes(gathered));
      values = gathered;
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
