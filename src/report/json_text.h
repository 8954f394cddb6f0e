// JSON that any strict parser accepts: bytes that are no UTF-8 become U+FFFD, numbers that are not finite become null.
#pragma once
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

}  // namespace shardpipe
