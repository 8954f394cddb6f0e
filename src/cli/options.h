// The one table of what can be set for a run: flags, TOML keys, --print-config, --help and the suggestions for misspelt
// names all come from it. A TOML key is the flag's name without its dashes in front.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "train/run_config.h"

namespace shardpipe::cli {

// What a flag or a key was given, typed, before it goes into a RunConfig.
using Value = std::variant<bool, int64_t, double, std::string, std::vector<bool>, std::vector<int64_t>,
                           std::vector<double>, std::vector<std::string>>;

enum class Kind : uint8_t {
  Switch,    // --trace, --no-trace; TOML true / false
  YesNos,    // --reshard-after-forward yes or yes,no,no; TOML true or [true, false, false]
  Integer,   // --pp 2; TOML 2
  Integers,  // --zero 3 or 3,3,2,1; TOML 3 or [3, 3, 2, 1]
  Real,      // --lr 3e-4; TOML 3e-4 or a whole number
  Choice,    // --optimizer adamw; TOML "adamw"
  Text,      // --out runs/a; TOML "runs/a"
  Reals,     // --block-cost 10,10,5; TOML [10, 10, 5]
  Stages,    // --stages 5,3,4 or auto; TOML [5, 3, 4] or "auto"; "auto" is the empty list
  Files,     // --data a,b, repeatable; TOML ["a", "b"] or "a"
};

struct Option {
  std::string name;      // "micro-batch-size"
  std::string opposite;  // of a Switch: "untied", "no-trace"
  std::string group;     // heading in --help
  Kind kind;
  std::string help;
  std::string default_text;          // what --help says of the default; empty: it is that of RunConfig{}
  std::vector<std::string> choices;  // of a Choice
  bool of_verify = true;             // also a flag of `shardpipe verify`
  std::function<void(RunConfig&, const Value&)> set;  // requires a value of the kind
  std::function<Value(const RunConfig&)> get;
  std::string allowed_text = {}, placeholder_text = {};  // of a Text: what stands there, where it is no folder
};

const std::vector<Option>& options();               // made once, never changed
const Option& option_named(std::string_view name);  // one of them that there is
// The flags of `shardpipe show`, which are no keys: nothing of a run; `set` and `get` are empty.
const std::vector<Option>& show_options();
// Those of `shardpipe plan` that are nothing of a run; it takes some of options() besides: see belongs().
const std::vector<Option>& plan_options();

// What the kind allows, in words: "a whole number", "adamw, sgd".
std::string allowed(const Option&);
// "N", "FILE[,FILE]", "adamw|sgd": how --help shows the value; empty for a Switch.
std::string placeholder(const Option&);

// The whole text must be a value of the option's kind. InputError "found …, allowed: …", without the flag's name.
Value parse_value(const Option&, std::string_view text);

// As TOML writes it; the text parses back to the same value.
std::string to_toml(const Value&);

// Every option and its value, a line each, under the headings of --help: TOML that resolves to the same RunConfig
// again.
std::string print_config(const RunConfig&);

}  // namespace shardpipe::cli
