// The flags of `shardpipe show`.
#include <fmt/format.h>

#include "cli/command_flags.h"
#include "schedules/schedule.h"

namespace shardpipe::cli {
namespace {

std::vector<Option> make_show_options() {
  const std::string schedules = fmt::format("{}", fmt::join(schedule_names(), ", "));
  return {
      text_of(flag("Schedule", Kind::Text, "schedule",
                   "what to draw: one of those below, or one of your own, from a file", "1f1b"),
              "NAME|file:PATH", schedules + ", file:PATH"),
      text_of(flag("Schedule", Kind::Text, "compare",
                   "draw several on one scale of time, with a table of what they cost", "none"),
              "A,B,C", "schedules with commas between them: " + schedules + ", file:PATH"),
      flag("Schedule", Kind::Integer, "pp", "pipeline ranks", "those of the file, else 4"),
      flag("Schedule", Kind::Integer, "micro-batches", "of a step, on one replica", "those of the file, else 8"),
      flag("Schedule", Kind::Integer, "chunks",
           "stages that a rank holds; with --compare: of those schedules that leave the choice",
           "as the schedule usually has"),
      text_of(flag("Schedule", Kind::Text, "costs",
                   "time of a rank's whole forward, of the input and the weight part of its backward, and of a message "
                   "to the next rank; one of v chunks takes a v-th of it",
                   "1,1,1,0"),
              "F,I,W[,T]", "three or four numbers from 0 to 1e12 with commas between them, the first three not all 0"),
      one_of(flag("Picture", Kind::Choice, "format",
                  "text: for a terminal; svg: a picture; perfetto: a trace, a unit of time is a millisecond; schedule: "
                  "itself, to edit and run with --schedule file:PATH; csv: as PyTorch's pipelining keeps it",
                  "by the end of --out: .svg, .json, .schedule, .csv; else text"),
             {"text", "svg", "perfetto", "schedule", "csv"}),
      text_of(flag("Picture", Kind::Text, "out", "write into this file, whatever it held", "none: standard output"),
              "FILE", "the name of a file"),
      flag("Picture", Kind::Integer, "width", "columns of the text", "those of the terminal, else 80"),
      one_of(flag("Picture", Kind::Choice, "color", "colours in the text; auto: on a terminal, unless NO_COLOR is set",
                  "auto"),
             {"auto", "always", "never"}),
  };
}

}  // namespace

const std::vector<Option>& show_options() {
  static const std::vector<Option> table = make_show_options();
  return table;
}

}  // namespace shardpipe::cli
