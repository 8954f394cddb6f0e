// The two ways in which something can be wrong: a person can mend it (InputError), or we must (InvariantError).
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace shardpipe {

// One thing that the person who typed the command can mend: what was found, what is allowed, where. Exit code 2.
// Carries several such lines when a configuration has several mistakes: all are told at once.
class InputError : public std::runtime_error {
 public:
  explicit InputError(std::string problem);
  explicit InputError(std::vector<std::string> problems);
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

// A promise of our own that does not hold; the text names rank and action where there are any. Exit code 1.
class InvariantError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws InvariantError with the formatted text unless `holds`.
template <typename... Args>
void check_invariant(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw InvariantError(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace shardpipe
