// The flags of `shardpipe plan` that are nothing of a run.
#include "cli/calibrate.h"
#include "cli/command_flags.h"
#include "cli/plan_answer.h"
#include "plan/hardware.h"

namespace shardpipe::cli {
namespace {

std::vector<std::string> presets_and_cpu() {
  std::vector<std::string> names = device_presets();
  names.emplace_back("cpu");
  return names;
}

std::vector<Option> make_plan_options() {
  return {
      flag("Devices", Kind::Integer, "devices", "how many there are: pp × dp of every layout",
           "none: it must be given"),
      one_of(flag("Devices", Kind::Choice, "device-preset",
                  "what each can do (figures: at the end of --help); cpu: this machine, from its profile",
                  "none: it must be given"),
             presets_and_cpu()),
      flag("Devices", Kind::Switch, "calibrate",
           "measure this machine first, in at most a minute, and plan for its cores as device cpu", "no"),
      text_of(flag("Devices", Kind::Text, "profile", "what --calibrate writes and --device-preset cpu reads",
                   usual_profile),
              "FILE", "the name of a file"),
      flag("Devices", Kind::Integer, "devices-per-node", "devices that share fast links", "8"),
      text_of(flag("Devices", Kind::Text, "links",
                   "nvlink or pcie inside a node, ib-N or eth-N between nodes, of N Gbit/s for each device; or one of "
                   "each, as nvlink,ib-200",
                   "the preset's usual ones"),
              "NAMES", "nvlink or pcie, ib-N or eth-N, or one of each with a comma between"),
      text_of(flag("Devices", Kind::Text, "memory",
                   "bytes of a device that an arena may have: a number with k, M, G or T (10^3 …), Ki, Mi, Gi or Ti",
                   "92 % of the device's"),
              "BYTES", "a number of bytes, as 70GB or 64GiB"),
      text_of(flag("Answer", Kind::Text, "tokens",
                   "to train on, in all: how long that takes, and whether they are enough; with k, M, G or T",
                   "20 a parameter"),
              "N", "a number, as 300G or 20000000"),
      flag("Answer", Kind::Integer, "top", "layouts in the table", "10"),
      flag("Answer", Kind::Integer, "explain",
           "show this row of the table: its bytes and seconds, the picture of its step, and the command that trains "
           "with it",
           "none"),
      one_of(flag("Answer", Kind::Choice, "emit",
                  "print the first row, or that of --explain, in another trainer's settings; what it refuses is said",
                  "none"),
             frameworks()),
      flag("Answer", Kind::Switch, "json", "print JSON instead", "no"),
  };
}

}  // namespace

const std::vector<Option>& plan_options() {
  static const std::vector<Option> table = make_plan_options();
  return table;
}

}  // namespace shardpipe::cli
