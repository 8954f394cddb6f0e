#include "report/summary.h"

#include "report/json_text.h"

namespace shardpipe {

std::string to_json(const Summary& summary) {
  nlohmann::ordered_json json = {{"steps", summary.steps},
                                 {"tokens", summary.tokens},
                                 {"final_loss", summary.final_loss},
                                 {"val_loss", or_null(summary.val_loss)},
                                 {"params_digest", summary.params_digest},
                                 {"skipped_steps", summary.skipped_steps},
                                 {"peak_bytes", summary.peak_bytes},
                                 {"planned_peak_bytes", summary.planned_peak_bytes},
                                 {"wire_bytes", summary.wire_bytes},
                                 {"store_bytes", summary.store_bytes},
                                 {"fetched_bytes", summary.fetched_bytes},
                                 {"offloaded_bytes", summary.offloaded_bytes},
                                 {"cpu_seconds", summary.cpu_seconds},
                                 {"seconds", summary.seconds},
                                 {"interrupted", summary.interrupted},
                                 {"layout", summary.layout}};
  name_if_not_finite(json, "final_loss", summary.final_loss);
  name_if_not_finite(json, "val_loss", summary.val_loss);
  return json_text(json, 2) + "\n";
}

}  // namespace shardpipe
