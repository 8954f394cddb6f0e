// JSON that any strict parser accepts: bytes that are no UTF-8 become U+FFFD, numbers that are not finite become null.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace shardpipe {

// indent: spaces a level; -1: everything on one line.
inline std::string json_text(const nlohmann::ordered_json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

inline nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

// Says in `<key>_text` which number that is not finite stands as null in `key`: "nan", "inf" or "-inf".
inline void name_if_not_finite(nlohmann::ordered_json& object, const std::string& key,
                               const std::optional<double>& value) {
  if (value && !std::isfinite(*value)) object[key + "_text"] = std::isnan(*value) ? "nan" : fmt::format("{}", *value);
}

}  // namespace shardpipe
