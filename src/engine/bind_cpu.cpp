#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "engine/bind.h"
#include "engine/bind_comm.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/exact_squares.h"
#include "kernels/cpu/optimizer.h"
#include "model/blocks/blocks.h"
#include "program/loss_scale.h"
#include "program/slots.h"
#include "program/text.h"

namespace shardpipe {
namespace {

// The part of a parameter group that an action treats, in a buffer that holds all of it or this rank's shard alone.
struct Part {
  std::byte* data;
  Range range;  // of the group's elements, without padding
  float* floats() const { return reinterpret_cast<float*>(data); }
  int64_t* integers() const { return reinterpret_cast<int64_t*>(data); }
  int64_t count() const { return static_cast<int64_t>(range.size()); }
};

// dst = src rounded to `dtype`, one of 16 bits.
void store(const float* src, DType dtype, std::byte* dst, int64_t count) {
  if (dtype == DType::BFloat16)
    kernels::convert(src, reinterpret_cast<BFloat16*>(dst), count);
  else
    kernels::convert(src, reinterpret_cast<Float16*>(dst), count);
}

class CpuBinder {
 public:
  CpuBinder(const Program& program, const StepShape& shape, const RankPlace& place, const StepSettings& settings,
            ArenaView arena)
      : rank_(program.by_pipeline_rank[place.pipeline_rank]),
        shape_(shape),
        place_(place),
        settings_(settings),
        arena_(arena) {}

  BoundAction bind(const Action& action) {
    switch (action.kind) {
      case Kind::Forward:
        return [this, block = &block(action), v = views(action)] { block_forward(*shape_.model, *block, v); };
      case Kind::Recompute:
        return [this, block = &block(action), v = views(action)] { block_recompute(*shape_.model, *block, v); };
      case Kind::Backward:
        return [this, block = &block(action), v = views(action)] {
          block_backward_input(*shape_.model, *block, v);
          block_backward_weight(*shape_.model, *block, v);
        };
      case Kind::BackwardInput:
        return [this, block = &block(action), v = views(action)] { block_backward_input(*shape_.model, *block, v); };
      case Kind::BackwardWeight:
        return [this, block = &block(action), v = views(action)] { block_backward_weight(*shape_.model, *block, v); };
      case Kind::SumTied:
        return sum_tied(action);
      case Kind::AddExact:
        return add_exact(action);
      case Kind::Round:
        return round(action);
      case Kind::GradientNorm:
        return gradient_norm(action);
      case Kind::Clip:
        return clip(action);
      case Kind::OptimizerStep:
        return optimizer_step(action);
      case Kind::Fetch:
        return [store = place_.store, from = first_use(action).offset, to = bytes(second_use(action))] {
          store->read(from, to);
        };
      case Kind::Offload:
        return [store = place_.store, from = bytes(first_use(action)), to = second_use(action).offset] {
          store->write(to, from);
        };
      default:
        throw InvariantError(fmt::format("no arithmetic for {}", name_of(action)));
    }
  }

 private:
  const Block& block(const Action& action) const { return shape_.model->blocks[action.index]; }
  const Buffer& first_use(const Action& action) const { return rank_.buffers[rank_.begin_uses(action)[0].buffer]; }
  const Buffer& second_use(const Action& action) const { return rank_.buffers[rank_.begin_uses(action)[1].buffer]; }
  std::span<std::byte> bytes(const Buffer& buffer) const { return {arena_.get<std::byte>(buffer), buffer.bytes}; }
  float* floats(const Use& use) const { return arena_.get<float>(rank_.buffers[use.buffer]); }

  BlockViews views(const Action& action) const {
    const Block& b = block(action);
    BlockViews v{.shape = shape_.micro_batch, .recompute = shape_.recompute[action.index]};
    const BlockBytes bytes = block_bytes(*shape_.model, b, shape_.micro_batch, v.recompute);
    if (shape_.training) v.dropout = &settings_.dropout;
    v.first_row = static_cast<uint64_t>((place_.replica * shape_.layout.micro_batches() + action.micro_batch) *
                                        shape_.layout.micro_batch_size);
    const auto slot_of = [&](uint16_t group) {
      return static_cast<size_t>(std::ranges::find(b.groups, group) - b.groups.begin());
    };
    for (const Use& use : uses_of(rank_, action)) {
      const Buffer& buffer = rank_.buffers[use.buffer];
      switch (buffer.role) {
        case Role::Tokens:
          v.tokens = arena_.get<int32_t>(buffer);
          break;
        case Role::Targets:
          v.targets = arena_.get<int32_t>(buffer);
          break;
        case Role::Parameters:
          v.parameters[slot_of(buffer.index)] = arena_.get<std::byte>(buffer);
          break;
        case Role::Activation:
          if (buffer.index == action.index)
            v.input = arena_.get<std::byte>(buffer);
          else
            v.output = arena_.get<std::byte>(buffer);
          break;
        case Role::ActivationGradient:
          if (buffer.index == action.index)
            v.input_gradient = arena_.get<std::byte>(buffer);
          else
            v.output_gradient = arena_.get<std::byte>(buffer);
          break;
        case Role::Saved:
          v.saved = arena_.get<std::byte>(buffer);
          break;
        case Role::Recomputed:
          v.recomputed = arena_.get<std::byte>(buffer);
          break;
        case Role::Gradient:
          v.gradients[slot_of(buffer.index)] = floats(use);
          v.accumulate[slot_of(buffer.index)] = use.access == Access::Add;
          break;
        case Role::Workspace:
          v.workspace = arena_.get<std::byte>(buffer);
          if (action.kind == Kind::Backward) {
            v.between = v.workspace;
            v.workspace += bytes.between;
          } else if (action.kind == Kind::Forward) {
            v.recomputed = v.workspace;
            v.workspace += bytes.recomputed;
          }
          break;
        case Role::Between:
          v.between = arena_.get<std::byte>(buffer);
          break;
        case Role::LossScale:
          v.loss_scale = &arena_.get<LossScale>(buffer)->factor;
          break;
        case Role::Loss:
          v.loss = arena_.get<LossSlot>(buffer);
          break;
        default:
          throw InvariantError(fmt::format("{} does not use {}", name_of(action), name_of(buffer)));
      }
    }
    return v;
  }

  // Of an array of fp32, or of parameters as blocks read them.
  Part part(const Use& use, Extent extent) const {
    const Buffer& buffer = rank_.buffers[use.buffer];
    const bool parameters = buffer.role == Role::Parameters || buffer.role == Role::Shard;
    const uint64_t element = parameters                           ? shape_.parameter_bytes()
                             : buffer.role == Role::ExactGradient ? sizeof(int64_t)
                                                                  : sizeof(float);
    const Shards cut = shape_.shards_of(buffer.index);
    auto* const data = arena_.get<std::byte>(buffer);
    if (extent == Extent::Whole) return {data, {0, cut.elements}};
    const bool holds_all = buffer.bytes == cut.padded_elements() * element;
    const uint64_t shard = shape_.shard_index(place_.replica);
    return {data + (holds_all ? shard * cut.shard_elements * element : 0), owned(cut, shard)};
  }
  bool uses_role(const Action& action, Role role) const {
    return std::ranges::any_of(uses_of(rank_, action),
                               [&](const Use& use) { return rank_.buffers[use.buffer].role == role; });
  }
  const Use& use_of(const Action& action, Role role) const {
    for (const Use& use : uses_of(rank_, action))
      if (rank_.buffers[use.buffer].role == role) return use;
    throw InvariantError(fmt::format("{} uses no {}", name_of(action), to_string(role)));
  }
  const Buffer& buffer_of(const Action& action, Role role) const { return rank_.buffers[use_of(action, role).buffer]; }

  BoundAction sum_tied(const Action& action) const {
    const UseRange uses = uses_of(rank_, action);
    const Part from = part(uses.begin()[0], action.extent), to = part(uses.begin()[1], action.extent);
    if (is_exact(rank_, action))
      return [to, from] {
        const int64_t* const term = from.integers();
        kernels::sum_in_order(&term, 1, to.integers(), to.count(), /*accumulate=*/true);
      };
    return [to, from] { kernels::add(from.floats(), to.floats(), static_cast<int64_t>(to.range.size())); };
  }

  // Null where the loss is not scaled.
  LossScale* loss_scale_of(const Action& action) const {
    return uses_role(action, Role::LossScale) ? arena_.get<LossScale>(buffer_of(action, Role::LossScale)) : nullptr;
  }
  kernels::ExactForm exact_form(const LossScale* loss_scale) const {
    return {exact_quantum_log2(loss_scale == nullptr ? LossScale{} : *loss_scale), shape_.contributions()};
  }

  BoundAction add_exact(const Action& action) const {
    const Use &sum = use_of(action, Role::ExactGradient), &lost = use_of(action, Role::Overflows);
    return [this, from = part(use_of(action, Role::Gradient), Extent::Whole), to = part(sum, Extent::Whole),
            lost = arena_.get<int64_t>(rank_.buffers[lost.buffer]), first = lost.access == Access::Write,
            accumulate = sum.access == Access::Add, loss_scale = loss_scale_of(action)] {
      const int64_t count =
          kernels::exact_add(exact_form(loss_scale), from.floats(), to.integers(), from.count(), accumulate);
      *lost = (first ? 0 : *lost) + count;
    };
  }

  BoundAction round(const Action& action) const {
    return [this, from = part(use_of(action, Role::ExactGradient), action.extent),
            to = part(use_of(action, Role::Gradient), action.extent), loss_scale = loss_scale_of(action)] {
      kernels::exact_to_float(exact_form(loss_scale), from.integers(), to.floats(), to.count());
    };
  }

  SlotShape slot_shape() const {
    return {shape_.model->groups.size(), static_cast<uint64_t>(shape_.layout.dp),
            static_cast<uint64_t>(shape_.layout.micro_batches()), shape_.layout.reproducible};
  }

  // Squares are taken slice by slice, a slice for each replica, even where a gradient is whole, so that they add up in
  // the same order in every layout. Of the copies of a shard each takes one slice.
  BoundAction gradient_norm(const Action& action) const {
    const Buffer& buffer = buffer_of(action, Role::Slots);
    struct Square {
      const float* data;
      int64_t count;
      uint64_t slot;
    };
    std::vector<Square> squares;
    std::vector<std::pair<const LossSlot*, uint64_t>> losses;
    const SlotShape slots = slot_shape();
    for (const Use& use : uses_of(rank_, action)) {
      const Buffer& read = rank_.buffers[use.buffer];
      if (read.role == Role::Loss)
        losses.emplace_back(arena_.get<LossSlot>(read), slots.loss(place_.replica, read.micro_batch));
      if (read.role != Role::Gradient) continue;
      if (action.extent == Extent::Owned) {
        const Part mine = part(use, Extent::Owned);
        const uint64_t slice = shape_.shard_index(place_.replica) * static_cast<uint64_t>(shape_.layout.replicate) +
                               shape_.copy_index(place_.replica);
        const Range range = owned(shape_.slices_of(read.index), slice);
        squares.push_back({mine.floats() + (range.begin - mine.range.begin), static_cast<int64_t>(range.size()),
                           slots.square(read.index, slice)});
      } else if (place_.replica == 0) {
        const Shards cut = shape_.slices_of(read.index);
        for (uint64_t shard = 0; shard < cut.ranks; ++shard)
          squares.push_back({floats(use) + owned(cut, shard).begin, static_cast<int64_t>(owned(cut, shard).size()),
                             slots.square(read.index, shard)});
      }
    }
    const bool first_rank = place_.pipeline_rank == 0 && place_.replica == 0;
    const int64_t* const lost =
        uses_role(action, Role::Overflows) ? arena_.get<int64_t>(buffer_of(action, Role::Overflows)) : nullptr;
    return [this, out = arena_.get<double>(buffer), slots, squares, losses, first_rank, lost,
            loss_scale = loss_scale_of(action), settings = &settings_] {
      std::fill_n(out, slots.count(), 0.0);
      for (const Square& square : squares)
        if (slots.exact)
          std::ranges::copy(kernels::exact_squares(exact_form(loss_scale), square.data, square.count),
                            out + square.slot);
        else
          out[square.slot] = kernels::sum_of_squares(square.data, square.count);
      if (lost != nullptr) out[slots.overflows()] = static_cast<double>(*lost);
      for (const auto& [loss, slot] : losses) {
        out[slot] = loss->loss;
        out[slot + 1] = loss->tokens;
      }
      if (first_rank && settings->stop_requested) out[slots.stop()] = 1;
    };
  }

  BoundAction clip(const Action& action) const {
    LossScale* const loss_scale = loss_scale_of(action);
    const int64_t batch_tokens = shape_.layout.global_batch_size * shape_.micro_batch.sequence;
    return [this, in = arena_.get<double>(buffer_of(action, Role::Slots)),
            out = arena_.get<StepScalars>(buffer_of(action, Role::Scalars)), slots = slot_shape(),
            settings = &settings_, loss_scale, batch_tokens] {
      *out = combine(in, slots, exact_form(loss_scale), settings->gradient_clip,
                     loss_scale == nullptr ? LossScale{} : *loss_scale);
      if (loss_scale != nullptr && out->tokens > 0)
        *loss_scale = next_loss_scale(*loss_scale, settings->loss_scale, out->skipped, batch_tokens);
    };
  }

  static double sum_of_squares(const double* slots, const SlotShape& shape, const kernels::ExactForm& form) {
    double squares = 0;
    kernels::SquareWords words{};
    for (uint64_t group = 0; group < shape.parameter_groups; ++group)
      for (uint64_t shard = 0; shard < shape.replicas; ++shard)
        if (const double* const slot = slots + shape.square(group, shard); shape.exact)
          kernels::add_words(slot, words);
        else
          squares += *slot;
    return shape.exact ? kernels::squares_of_words(form, words) : squares;
  }

  static StepScalars combine(const double* slots, const SlotShape& shape, const kernels::ExactForm& form,
                             double gradient_clip, const LossScale& loss_scale) {
    const double squares = sum_of_squares(slots, shape, form);
    double loss = 0;
    StepScalars scalars;
    for (uint64_t replica = 0; replica < shape.replicas; ++replica)
      for (uint64_t m = 0; m < shape.micro_batches; ++m) {
        loss += slots[shape.loss(replica, m)];
        scalars.tokens += slots[shape.loss(replica, m) + 1];
      }
    scalars.stop = slots[shape.stop()] != 0;
    scalars.loss_scale = loss_scale.scale;
    if (scalars.tokens == 0) return scalars;  // nothing to learn from: loss, norm and scale are 0
    scalars.loss = loss / scalars.tokens;
    scalars.out_of_range = shape.exact && slots[shape.overflows()] != 0;
    scalars.skipped = scalars.out_of_range || !std::isfinite(squares);
    scalars.gradient_norm = scalars.skipped ? std::numeric_limits<double>::infinity()
                                            : std::sqrt(squares) / (scalars.tokens * loss_scale.factor);
    if (scalars.skipped) return scalars;
    const double factor = gradient_clip > 0 ? std::min(1.0, gradient_clip / (scalars.gradient_norm + 1e-6)) : 1.0;
    scalars.gradient_scale = factor / (scalars.tokens * loss_scale.factor);
    return scalars;
  }

  BoundAction optimizer_step(const Action& action) const {
    const bool sharded = uses_role(action, Role::Shard), masters = uses_role(action, Role::Master);
    const Part all = part(use_of(action, sharded ? Role::Shard : Role::Parameters), action.extent);
    // What of it this step updates, and how far into it that begins.
    Range range = all.range;
    uint64_t skipped = 0;
    if (action.piece != none) {
      const auto of_a_piece = static_cast<uint64_t>(shape_.layout.offload_piece);
      skipped = (action.piece - uint64_t{1}) * of_a_piece;
      range.begin = std::min(all.range.begin + skipped, all.range.end);
      range.end = std::min(range.begin + of_a_piece, all.range.end);
    }
    const float* const gradient = part(use_of(action, Role::Gradient), action.extent).floats() + skipped;
    std::byte* const stored = all.data + skipped * shape_.parameter_bytes();
    float* parameter = reinterpret_cast<float*>(stored);
    if (masters)
      parameter = action.piece == none ? part(use_of(action, Role::Master), action.extent).floats()
                                       : floats(use_of(action, Role::Master));
    float *m = nullptr, *v = nullptr;
    if (uses_role(action, Role::OptimizerState)) {
      const Buffer& state = buffer_of(action, Role::OptimizerState);
      m = arena_.get<float>(state);
      v = m + state.bytes / sizeof(float) / 2;
    }
    // Runs of the part that decay, or do not.
    struct Run {
      uint64_t first, count;
      bool decays;
    };
    std::vector<Run> runs;
    for (const Tensor& tensor : shape_.model->groups[action.index].tensors) {
      const uint64_t begin = std::max(tensor.offset, range.begin);
      const uint64_t end = std::min(tensor.offset + tensor.elements, range.end);
      if (begin >= end) continue;
      const uint64_t first = begin - range.begin;
      if (!runs.empty() && runs.back().decays == tensor.decays && runs.back().first + runs.back().count == first)
        runs.back().count += end - begin;
      else
        runs.push_back({first, end - begin, tensor.decays});
    }
    const auto* scalars = arena_.get<StepScalars>(buffer_of(action, Role::Scalars));
    return [=, dtype = shape_.micro_batch.dtype, settings = &settings_] {
      if (scalars->tokens == 0 || scalars->skipped) return;  // such a step changes nothing
      const auto scale = static_cast<float>(scalars->gradient_scale);
      const auto lr = static_cast<float>(settings->learning_rate);
      for (const Run& run : runs) {
        const float decay = run.decays ? static_cast<float>(settings->weight_decay) : 0.0f;
        float* p = parameter + run.first;
        const float* g = gradient + run.first;
        const auto count = static_cast<int64_t>(run.count);
        if (!settings->adamw) {
          kernels::sgd_step({.learning_rate = lr, .weight_decay = decay, .gradient_scale = scale}, p, g, count);
          continue;
        }
        const auto update = static_cast<double>(settings->update);
        kernels::adamw_step({.learning_rate = lr,
                             .beta1 = settings->beta1,
                             .beta2 = settings->beta2,
                             .epsilon = static_cast<float>(settings->epsilon),
                             .weight_decay = decay,
                             .bias_correction1 = static_cast<float>(1 - std::pow(settings->beta1, update)),
                             .bias_correction2 = static_cast<float>(1 - std::pow(settings->beta2, update)),
                             .gradient_scale = scale},
                            p, g, m + run.first, v + run.first, count);
      }
      if (masters) store(parameter, dtype, stored, static_cast<int64_t>(range.size()));
    };
  }

  const RankProgram& rank_;
  const StepShape& shape_;
  const RankPlace place_;
  const StepSettings& settings_;
  ArenaView arena_;
};

}  // namespace

std::vector<BoundAction> bind_cpu(const Program& program, const StepShape& shape, const RankPlace& place,
                                  const StepSettings& settings, std::byte* arena, uint64_t& highest_byte) {
  const ArenaView view{arena, &highest_byte};
  const auto binder = std::make_shared<CpuBinder>(program, shape, place, settings, view);
  std::vector<BoundAction> bound;
  for (const Action& action : program.by_pipeline_rank[place.pipeline_rank].actions) {
    if (action.group != none) {
      bound.push_back(bind_communication(program, shape, place, view, action));
    } else {
      BoundAction function = binder->bind(action);
      bound.emplace_back(
          [binder, function = std::move(function)] { function(); });  // the functions look into the binder
    }
  }
  return bound;
}

}  // namespace shardpipe
