// One training run, fully resolved: what the flags and the TOML file come to, what config.toml in the run's folder says
// again. Field names are the flags' names with underscores.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "layout/layout.h"
#include "model/shape/model.h"
#include "program/loss_scale.h"

namespace shardpipe {

enum class OptimizerKind : uint8_t { AdamW, Sgd };
enum class LrSchedule : uint8_t { Constant, Linear, Cosine };
enum class TokenFormat : uint8_t { Text, Uint16, Uint32 };  // text: one token a byte

struct OptimizerConfig {
  OptimizerKind optimizer = OptimizerKind::AdamW;
  double lr = 3e-4, min_lr = 3e-5;
  LrSchedule lr_schedule = LrSchedule::Cosine;
  int64_t warmup_steps = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  double grad_clip = 1.0;  // 0: no clipping
  bool operator==(const OptimizerConfig&) const = default;
};

enum class OnNan : uint8_t { Stop, Continue };

struct DataConfig {
  std::vector<std::string> data;  // files, read as one stream in this order
  TokenFormat data_format = TokenFormat::Text;
  double val_fraction = 0.05;  // of the tokens, from the end: the held-out part
  bool operator==(const DataConfig&) const = default;
};

struct RunConfig {
  ModelConfig model;
  Layout layout;
  OptimizerConfig optimizer;
  LossScaleSettings loss_scale;  // of fp16
  OnNan on_nan = OnNan::Stop;    // a loss, or without loss scaling a gradient, that is not finite
  DataConfig data;
  std::vector<double>
      block_cost;  // of a synthetic model: milliseconds of a layer's F, I, W and R (none: as F); empty: 10, 10, 10
  int64_t steps = 100;
  uint64_t seed = 1;
  int64_t eval_every = 0;             // steps; 0: only after the last step, when there is a held-out part
  int64_t eval_sequences = 64;        // held-out windows an evaluation reads, at most
  std::string offload_to = "host";    // where ranks keep what --offload names: host, or nvme:DIR
  std::string memory_limit = "none";  // of each rank's arena: bytes_in (memory_limit.h)
  std::string out;                    // folder of the run; empty: nothing is written (verify, tests)
  bool trace = false;                 // write trace.json for the last step
  bool operator==(const RunConfig&) const = default;
};

// The learning rate of optimizer step k = 1 … steps: linear from lr/warmup_steps up to lr over warmup_steps, then by
// the schedule down to min_lr at the last step. Depends on nothing else: not on micro-batches, replicas or stages.
double learning_rate(const OptimizerConfig&, int64_t step, int64_t steps);

// The folder of nvme:DIR; empty: host memory.
std::string offload_folder(const RunConfig&);

// Every rule that does not hold, of the model, the layout and the rest, a line each. Does not open files.
std::vector<std::string> problems_of(const RunConfig&);

}  // namespace shardpipe
