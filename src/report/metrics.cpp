#include "report/metrics.h"

#include <nlohmann/json.hpp>

#include "report/json_text.h"

namespace shardpipe {

std::string to_json_line(const StepMetrics& metrics) {
  return json_text({{"step", metrics.step},
                    {"loss", metrics.loss},
                    {"grad_norm", metrics.grad_norm},
                    {"lr", metrics.lr},
                    {"tokens", metrics.tokens},
                    {"seconds", metrics.seconds},
                    {"tokens_per_second", metrics.tokens_per_second},
                    {"mfu", or_null(metrics.mfu)},
                    {"peak_bytes", metrics.peak_bytes},
                    {"wire_bytes", metrics.wire_bytes},
                    {"skipped", metrics.skipped},
                    {"val_loss", or_null(metrics.val_loss)}});
}

}  // namespace shardpipe
