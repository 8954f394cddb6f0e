// The loop: next batch -> execute -> read scalars -> report. One for all layouts; every rank runs it on its own thread,
// and takes the same decisions from the same scalars.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/rank.h"
#include "model/shape/model.h"
#include "train/run_config.h"

namespace shardpipe {

// Fills one sequence and its targets (kernels::ignored_target where there is none). Called by several ranks at once,
// for the same sample too: where a stage reads the tokens and another the targets.
using SampleSource = std::function<void(int64_t sample, std::span<int32_t> inputs, std::span<int32_t> targets)>;

struct TrainInputs {
  SampleSource train;     // sample 0, 1, …: without end
  SampleSource held_out;  // sample 0 … held_out_samples - 1
  int64_t held_out_samples = 0;
};

struct StepResult {
  int64_t step = 0;  // 1 …
  StepScalars scalars;
  double learning_rate = 0;
  double seconds = 0;
  std::optional<double> val_loss;  // when this step ended with an evaluation
};

struct TrainResult {
  int64_t steps = 0;  // done
  int64_t skipped_steps = 0;
  bool stopped = false;  // asked to stop before the last step
  StepResult last;
  std::optional<double> val_loss;                        // the newest
  std::string params_digest;                             // 32 hex digits
  std::map<std::string, std::vector<float>> parameters;  // by tensor, when kept
  std::vector<uint64_t> planned_peak_bytes, peak_bytes;  // arena of each world rank: as compiled; as given to actions
  std::vector<WireBytes> wire_bytes;                     // of each world rank, evaluations included
  std::vector<uint64_t> store_bytes;                     // of each world rank
  uint64_t fetched_bytes = 0, offloaded_bytes = 0;       // of all ranks, the start and evaluations included
  std::vector<Timeline> timelines;                       // of the last step, by world rank
};

struct TrainHooks {
  std::function<void(const StepResult&)> on_step = nullptr;  // called on rank 0's thread after each step
  std::function<bool()> stop_requested = nullptr;            // asked on rank 0's thread before each step
  std::function<Observer(int world_rank)> observer = nullptr;
  InitialParameters initial = nullptr;  // to start from others than the seed's
  bool keep_parameters = false;
  int64_t first_sample_step = 0;  // the data of step 1 is that of step 1 + this: to start elsewhere in the text
};

// Trains from the seed's initial parameters. `step` is compiled from config.layout and config.model. Throws what a rank
// threw first; a loss that is not finite ends the run with the step, and where that began, in the error.
TrainResult run_training(const RunConfig& config, const Step& step, const TrainInputs& inputs,
                         const TrainHooks& hooks = {});

inline uint64_t optimizer_states_per_element(OptimizerKind kind) { return kind == OptimizerKind::AdamW ? 2 : 0; }

// Which sample row `row` of a micro-batch is: the same in every layout of one data-parallel size.
inline int64_t sample_number(const Layout& layout, int64_t step, int64_t replica, int64_t micro_batch, int64_t row) {
  return (step - 1) * layout.global_batch_size +
         (replica * layout.micro_batches() + micro_batch) * layout.micro_batch_size + row;
}

}  // namespace shardpipe
