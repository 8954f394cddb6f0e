#include "report/metrics.h"

#include <nlohmann/json.hpp>

#include "report/json_text.h"

namespace shardpipe {

std::string to_json_line(const StepMetrics& metrics) {
  nlohmann::ordered_json json = {{"step", metrics.step},
                                 {"loss", metrics.loss},
                                 {"grad_norm", metrics.grad_norm},
                                 {"lr", metrics.lr},
                                 {"tokens", metrics.tokens},
                                 {"seconds", metrics.seconds},
                                 {"tokens_per_second", metrics.tokens_per_second},
                                 {"mfu", or_null(metrics.mfu)},
                                 {"peak_bytes", metrics.peak_bytes},
                                 {"wire_bytes", metrics.wire_bytes},
                                 {"loss_scale", or_null(metrics.loss_scale)},
                                 {"skipped", metrics.skipped},
                                 {"val_loss", or_null(metrics.val_loss)}};
  name_if_not_finite(json, "loss", metrics.loss);
  name_if_not_finite(json, "grad_norm", metrics.grad_norm);
  name_if_not_finite(json, "val_loss", metrics.val_loss);
  return json_text(json);
}

}  // namespace shardpipe
