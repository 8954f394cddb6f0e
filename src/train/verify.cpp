#include "train/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "data/sampler.h"
#include "program/slots.h"
#include "train/digest.h"
#include "train/plain_loop.h"
#include "train/run.h"
#include "train/samples.h"

namespace shardpipe {

uint64_t ulps_between(float a, float b) {
  // The bits of floats, as numbers that ascend with them.
  const auto place = [](float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    return bits >> 31 ? -static_cast<int64_t>(bits & 0x7FFFFFFF) - 1 : static_cast<int64_t>(bits);
  };
  const int64_t distance = place(a) - place(b);
  return static_cast<uint64_t>(distance < 0 ? -distance : distance);
}

namespace {

struct Named {
  int64_t step;
  PlainName name;
  auto operator<=>(const Named&) const = default;
};

// A difference in the first would be the cause of one in the second: forwards go up the blocks, backwards down.
bool comes_before(const Named& first, const Named& second) {
  const auto place = [](const Named& named) {
    const PlainName& name = named.name;
    const int block = name.kind == PlainKind::ActivationGradient ? -int{name.index} : int{name.index};
    return std::tuple(named.step, name.kind, name.micro_batch, block, name.use, name.part);
  };
  return place(first) < place(second);
}

using Visit = std::function<void(const Named&, std::span<const float>)>;

// The straight run; ends after step `last`.
std::vector<PlainStep> run_plain(const RunConfig& config, const SampleSource& samples, int64_t last,
                                 const Visit& visit) {
  PlainLoop loop(config.model, config.layout, config.optimizer, config.seed);
  loop.loss_scale_settings = config.loss_scale;
  const auto sequence = static_cast<size_t>(config.model.seq_len),
             batch = static_cast<size_t>(config.layout.global_batch_size);
  std::vector<int32_t> tokens(batch * sequence), targets(batch * sequence);
  std::vector<PlainStep> steps;
  for (int64_t k = 1; k <= last; ++k) {
    for (size_t s = 0; s < batch; ++s)
      samples((k - 1) * config.layout.global_batch_size + static_cast<int64_t>(s),
              std::span(tokens).subspan(s * sequence, sequence), std::span(targets).subspan(s * sequence, sequence));
    loop.record = [&](const PlainName& name, std::span<const float> values) { visit({k, name}, values); };
    steps.push_back(loop.step(tokens, targets, learning_rate(config.optimizer, loop.steps_done + 1, config.steps)));
  }
  return steps;
}

// The values that an action of a rank has just made, by the names that they have in the straight run.
class Values {
 public:
  Values(const Step& step, int world_rank)
      : step_(step), replica_(static_cast<uint64_t>(world_rank % step.shape.layout.dp)) {}

  void of(int64_t step, const Action& action, const RankProgram& rank, std::byte* arena, const Visit& visit) {
    if (action.kind == Kind::Fetch || action.kind == Kind::Offload) return;  // copies
    for (const Use& use : uses_of(rank, action)) {
      const Buffer& buffer = rank.buffers[use.buffer];
      const bool stored = buffer.role == Role::Activation || buffer.role == Role::ActivationGradient;
      std::vector<float> widened, whole;
      std::span values(reinterpret_cast<const float*>(arena + buffer.offset), buffer.bytes / sizeof(float));
      if (const DType dtype = step_.shape.micro_batch.dtype; stored && dtype != DType::Float32) {
        with_element(dtype, [&]<Element T>() {
          for (const T& value : std::span(reinterpret_cast<const T*>(arena + buffer.offset), buffer.bytes / sizeof(T)))
            widened.push_back(to_float(value));
        });
        values = widened;
      }
      const bool written = use.access != Access::Read;
      const auto emit = [&](PlainKind kind, std::span<const float> part, uint64_t number) {
        visit({step,
               {kind, buffer.micro_batch == none ? uint16_t{0} : buffer.micro_batch, buffer.index,
                kind == PlainKind::OwnGradient ? buffer.copy : uint16_t{0}, number}},
              part);
      };
      if (action.kind == Kind::Forward && written && buffer.role == Role::Activation)
        emit(PlainKind::Activation, values, replica_);
      if (is_compute(action.kind)) {
        if (action.kind == Kind::Forward) continue;
        if (written && buffer.role == Role::ActivationGradient) emit(PlainKind::ActivationGradient, values, replica_);
        if (buffer.role == Role::Gradient && buffer.micro_batch != none)
          emit(PlainKind::OwnGradient, values.first(step_.shape.model->groups[buffer.index].elements), replica_);
        continue;
      }
      const bool gradient = action.kind == Kind::GradientNorm && buffer.role == Role::Gradient;
      const bool parameters =
          action.kind == Kind::OptimizerStep &&
          (step_.shape.has_masters() ? buffer.role == Role::Master
                                     : buffer.role == Role::Shard || buffer.role == Role::Parameters);
      if (!gradient && !parameters) continue;
      const PlainKind kind = gradient ? PlainKind::Gradient : PlainKind::Parameters;
      const Shards cut = step_.shape.shards_of(buffer.index), slices = step_.shape.slices_of(buffer.index);
      const uint64_t own = step_.shape.shard_index(static_cast<uint16_t>(replica_));
      if (action.piece != none) {
        const uint64_t all = action.extent == Extent::Owned ? cut.shard_elements : cut.padded_elements();
        if (buffer.role == Role::Master) pieces_.insert(pieces_.end(), values.begin(), values.end());
        if (action.piece * static_cast<uint64_t>(step_.shape.layout.offload_piece) < all) continue;
        if (buffer.role == Role::Master) values = whole = std::exchange(pieces_, {});
      }
      const uint64_t first = values.size() < cut.padded_elements() ? own * cut.shard_elements : 0;
      for (uint64_t slice = 0; slice < slices.ranks; ++slice) {
        if (action.extent == Extent::Owned && slice * slices.shard_elements / cut.shard_elements != own) continue;
        emit(kind, values.subspan(slice * slices.shard_elements - first, owned(slices, slice).size()), slice);
      }
    }
  }

 private:
  const Step& step_;
  uint64_t replica_;
  std::vector<float> pieces_;  // of masters that are updated one piece after the other, so far
};

std::string name_of(const Model& model, const Layout& layout, const PlainName& name, uint64_t element) {
  const auto of_replica = [&] { return layout.dp > 1 ? fmt::format(" of replica {}", name.part) : std::string(); };
  if (name.kind == PlainKind::Activation || name.kind == PlainKind::ActivationGradient)
    return fmt::format("{} {}, micro-batch {}{}, element {}",
                       name.kind == PlainKind::Activation ? "the input of" : "the gradient of the input of",
                       model.blocks[name.index].name, name.micro_batch, of_replica(), element);
  const ParameterGroup& group = model.groups[name.index];
  if (name.kind != PlainKind::OwnGradient)
    element += owned(shards(group.elements, static_cast<uint64_t>(layout.dp)), name.part).begin;
  for (const Tensor& tensor : group.tensors)
    if (element >= tensor.offset && element < tensor.offset + tensor.elements)
      return fmt::format(
          "{} {}{}, element {}", name.kind == PlainKind::Parameters ? "the weights" : "the gradient of", tensor.name,
          name.kind == PlainKind::OwnGradient ? fmt::format(", micro-batch {}{}", name.micro_batch, of_replica()) : "",
          element - tensor.offset);
  return fmt::format("{}, element {}", group.name, element);
}

class Comparison {
 public:
  Comparison(const RunConfig& config, const SampleSource& samples, const Disturb& disturb)
      : config_(config),
        samples_(samples),
        disturb_(disturb),
        model_(make_model(config.model)),
        step_(make_step(model_, config.layout, optimizer_states_per_element(config.optimizer.optimizer))) {}

  Verification run() {
    std::map<Named, Hash> expected;
    const std::vector<PlainStep> plain =
        run_plain(config_, samples_, config_.steps,
                  [&](const Named& named, std::span<const float> values) { expected[named] = hash_tensor(values); });

    // Ranks come at once; the earliest difference of all is kept.
    std::mutex mutex;
    std::optional<Named> first;
    Verification result;
    result.steps = config_.steps;
    const std::exception_ptr failure =
        run_layout(config_.steps, [&](const Named& named, std::span<const float> values) {
          const Hash hash = hash_tensor(values);
          const std::scoped_lock lock(mutex);
          const auto found = expected.find(named);
          check_invariant(found != expected.end(), "the plain run has no {}",
                          name_of(model_, config_.layout, named.name, 0));
          ++result.values;
          if (found->second != hash && (!first || comes_before(named, *first))) first = named;
        });
    if (failure && !first) std::rethrow_exception(failure);
    std::optional<std::string> scalars = scalar_difference(plain, first ? first->step : config_.steps + 1);
    if (scalars) {
      result.first_difference = *scalars;
    } else if (first) {
      result.first_difference = describe(*first);
    }
    result.equal = result.first_difference.empty();
    for (const ParameterGroup& group : model_.groups) result.tensors += group.tensors.size();
    return result;
  }

 private:
  // Returns what ended the run: once values differ, replicas may disagree or losses leave the finite numbers.
  std::exception_ptr run_layout(int64_t last, const Visit& visit) {
    scalars_.clear();
    TrainHooks hooks;
    hooks.on_step = [&](const StepResult& result) { scalars_.push_back(result.scalars); };
    hooks.stop_requested = [&, last] { return static_cast<int64_t>(scalars_.size()) + 1 >= last; };
    hooks.observer = [&](int world_rank) -> Observer {
      return [this, &visit, world_rank, values = Values(step_, world_rank)](
                 int64_t step, const Action& action, const RankProgram& rank, std::byte* arena) mutable {
        if (disturb_) disturb_(world_rank, step, action, rank, arena);
        values.of(step, action, rank, arena, visit);
      };
    };
    try {
      run_training(config_, step_, {.train = samples_, .held_out = nullptr}, hooks);
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  // Loss and norm follow from gradients and come before weights: they are the first difference only in a step whose
  // values are equal.
  std::optional<std::string> scalar_difference(const std::vector<PlainStep>& plain, int64_t before_step) const {
    for (size_t k = 0; k < scalars_.size() && static_cast<int64_t>(k) + 1 < before_step; ++k) {
      if (scalars_[k].loss != plain[k].loss)
        return fmt::format("step {}: the loss is {:.17g}, of the plain rank {:.17g}", k + 1, scalars_[k].loss,
                           plain[k].loss);
      if (scalars_[k].gradient_norm != plain[k].gradient_norm)
        return fmt::format("step {}: the gradient norm is {:.17g}, of the plain rank {:.17g}", k + 1,
                           scalars_[k].gradient_norm, plain[k].gradient_norm);
    }
    return std::nullopt;
  }

  // Both runs once more, to keep the values of this name.
  std::string describe(const Named& wanted) {
    std::vector<float> plain, ours;
    run_plain(config_, samples_, wanted.step, [&](const Named& named, std::span<const float> values) {
      if (named == wanted) plain.assign(values.begin(), values.end());
    });
    std::mutex mutex;
    run_layout(wanted.step, [&](const Named& named, std::span<const float> values) {
      if (named != wanted) return;
      const std::scoped_lock lock(mutex);
      // Several ranks may hold it; one that differs is wanted.
      if (ours.empty() || std::ranges::equal(ours, plain)) ours.assign(values.begin(), values.end());
    });
    const auto same_bits = [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); };
    const size_t element = static_cast<size_t>(std::ranges::mismatch(ours, plain, same_bits).in1 - ours.begin());
    check_invariant(element < ours.size(), "step {}: {} differed once and does not any more: the run is not repeatable",
                    wanted.step, name_of(model_, config_.layout, wanted.name, 0));
    size_t differing = 0;
    for (size_t i = 0; i < ours.size(); ++i) differing += same_bits(ours[i], plain[i]) ? 0 : 1;
    return fmt::format("step {}: {}: {:.9g}, of the plain rank {:.9g}, {} ULPs apart; {} of {} elements there differ",
                       wanted.step, name_of(model_, config_.layout, wanted.name, element), ours[element],
                       plain[element], ulps_between(ours[element], plain[element]), differing, ours.size());
  }

  const RunConfig& config_;
  const SampleSource& samples_;
  const Disturb& disturb_;
  Model model_;
  Step step_;
  std::vector<StepScalars> scalars_;  // of the newest run of the layout, by step; rank 0's thread
};

}  // namespace

Verification verify_layout(const RunConfig& config, const SampleSource& samples, const Disturb& disturb) {
  return Comparison(config, samples, disturb).run();
}

bool verify(const RunConfig& config) {
  std::optional<TokenStream> stream;
  SampleSource samples = random_samples(config.seed, config.model.vocab_size);
  if (!config.data.data.empty()) {
    stream.emplace(config.data.data, token_width(config.data.data_format), config.model.vocab_size,
                   config.model.seq_len + 1);
    samples = shuffled_windows(*stream, {0, stream->size(), config.model.seq_len}, config.seed);
  }
  const Verification result = verify_layout(config, samples);
  if (result.equal)
    fmt::print("equal, {} tensors, {} steps: {} activations, gradients and weights have the bits of one plain rank\n",
               result.tensors, result.steps, result.values);
  else
    fmt::print("different: {}\n", result.first_difference);
  return result.equal;
}

}  // namespace shardpipe
