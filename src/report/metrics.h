// What one optimizer step did, as one line of metrics.jsonl.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace shardpipe {

struct StepMetrics {
  int64_t step = 0;  // 1 …
  double loss = 0, grad_norm = 0, lr = 0;
  int64_t tokens = 0;  // predicted in this step
  double seconds = 0;  // of this step
  double tokens_per_second = 0;
  std::optional<double> mfu = {};                   // share of the peak FLOP/s, when the peak is known
  std::vector<uint64_t> peak_bytes = {};            // by world rank
  std::map<std::string, uint64_t> wire_bytes = {};  // by collective kind, sent in this step, summed over ranks
  std::optional<double> loss_scale = {};            // of fp16
  bool skipped = false;                             // the update was left out: a gradient was not finite
  std::optional<double> val_loss = {};              // when the step ended with an evaluation
};

// One JSON object without a line break, every key in every line. What is absent or not finite is null, since JSON has
// no NaN and no infinity; a loss or gradient norm that is not finite is named beside it: "loss": null, …,
// "loss_text": "nan" (or "inf", "-inf").
std::string to_json_line(const StepMetrics&);

}  // namespace shardpipe
