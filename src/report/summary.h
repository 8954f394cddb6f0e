// What a whole run came to: summary.json.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace shardpipe {

struct Summary {
  int64_t steps = 0;   // done
  int64_t tokens = 0;  // trained on
  double final_loss = 0;
  std::optional<double> val_loss = {};  // the newest
  std::string params_digest = {};       // 32 hex digits
  int64_t skipped_steps = 0;
  std::vector<uint64_t> peak_bytes = {}, planned_peak_bytes = {};  // by world rank
  std::map<std::string, uint64_t> wire_bytes = {};                 // by collective kind, summed over ranks
  std::vector<uint64_t> store_bytes = {};           // that each rank keeps outside its memory, by world rank
  uint64_t fetched_bytes = 0, offloaded_bytes = 0;  // from there and back, of all ranks
  double cpu_seconds = 0, seconds = 0;
  bool interrupted = false;  // asked to stop before the last step
  nlohmann::ordered_json layout = nlohmann::ordered_json::object();
};

// Indented JSON with a line break at its end. What is absent or not finite is null; a loss that is not
// finite is named beside it, as in metrics.jsonl.
std::string to_json(const Summary&);

}  // namespace shardpipe
