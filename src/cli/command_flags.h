// Makers of the flags that one command has for itself: no keys, nothing of a run; their set and get are empty.
#pragma once
#include "cli/options.h"

namespace shardpipe::cli {

inline Option flag(std::string group, Kind kind, std::string name, std::string help, std::string default_text) {
  return {.name = std::move(name),
          .opposite = "",
          .group = std::move(group),
          .kind = kind,
          .help = std::move(help),
          .default_text = std::move(default_text),
          .choices = {},
          .set = nullptr,
          .get = nullptr};
}

// Of Kind::Text: how --help shows the value, and what an error says is allowed.
inline Option text_of(Option option, std::string placeholder, std::string allowed) {
  option.placeholder_text = std::move(placeholder);
  option.allowed_text = std::move(allowed);
  return option;
}

inline Option one_of(Option option, std::vector<std::string> choices) {
  option.choices = std::move(choices);
  return option;
}

}  // namespace shardpipe::cli
