// shardpipe show
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/nearest_name.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/own_schedule.h"
#include "cli/schedule_picture.h"
#include "cli/settings.h"
#include "report/terminal.h"
#include "schedules/text.h"
#include "schedules/torch_csv.h"

namespace shardpipe::cli {
namespace {

constexpr int64_t most_ranks = 1024, most_micro_batches = 4096, most_chunks = 26, most_passes = 200'000;
constexpr int64_t narrowest = 40, widest = 100'000;  // columns
constexpr size_t most_compared = 16;

enum class Format : uint8_t { Text, Svg, Perfetto, Schedule, Csv };  // the last two: the schedule itself

using Problems = std::vector<std::string>;

// The flags as they were given.
class Flags {
 public:
  explicit Flags(const Settings& settings) : settings_(settings) {}

  bool given(std::string_view name) const { return find(name) != nullptr || unreadable(name); }
  // Of a flag that has a line of its own already, nothing more is to be said.
  bool unreadable(std::string_view name) const {
    return std::ranges::any_of(settings_.unreadable, [&](const Option* option) { return option->name == name; });
  }
  template <typename T>
  T value(std::string_view name, T otherwise) const {
    const Setting* setting = find(name);
    return setting ? std::get<T>(setting->value) : otherwise;
  }
  std::string text(std::string_view name, std::string otherwise) const {
    return value<std::string>(name, std::move(otherwise));
  }

 private:
  const Setting* find(std::string_view name) const {
    const auto found =
        std::ranges::find_if(settings_.given, [&](const Setting& setting) { return setting.option->name == name; });
    return found == settings_.given.end() ? nullptr : &*found;
  }
  const Settings& settings_;
};

int64_t whole_number(const Flags& flags, std::string_view name, int64_t otherwise, int64_t least, int64_t most,
                     Problems& problems) {
  const int64_t number = flags.value<int64_t>(name, otherwise);
  if (least <= number && number <= most) return number;
  problems.push_back(fmt::format("--{}: found {}, allowed: {} to {}", name, number, least, most));
  return otherwise;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

// "1,1,1" or "1,1,1,0.5"
std::optional<PassCosts> parse_costs(std::string_view text) {
  constexpr double most = 1e12;
  std::vector<double> numbers;
  for (const std::string& part : split(text)) {
    double number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error != std::errc{} || end != part.data() + part.size() || !(number >= 0 && number <= most))
      return std::nullopt;
    numbers.push_back(number);
  }
  if (numbers.size() == 3) numbers.push_back(0);
  if (numbers.size() != 4 || numbers[0] + numbers[1] + numbers[2] <= 0) return std::nullopt;
  return PassCosts{numbers[0], numbers[1], numbers[2], numbers[3]};
}

// One that --schedule or --compare names: a generator, or a schedule out of a file. Neither, with a problem, where
// there is none such.
struct Drawn {
  std::string name;
  const Generator* generator = nullptr;
  std::optional<Schedule> own;
};

Drawn drawn_by(const std::string& name, std::string_view flag, Problems& problems) {
  Drawn drawn{.name = name, .generator = find_generator(name), .own = std::nullopt};
  if (const std::optional<std::string> path = path_of_own_schedule(name)) {
    try {
      drawn.own = read_own_schedule(*path, flag);
    } catch (const InputError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  } else if (!drawn.generator) {
    const std::vector<std::string> known = schedule_names();
    problems.push_back(fmt::format("--{}: found '{}', allowed: {}, file:PATH{}", flag, name, fmt::join(known, ", "),
                                   did_you_mean(name, known)));
  }
  return drawn;
}

bool has_the_choice(const Generator& generator) { return generator.fewest_chunks != generator.most_chunks; }

// asked_for: 0 where nothing was; a schedule without the choice has what it always has.
uint16_t chunks_of(const Generator& generator, uint16_t asked_for) {
  return has_the_choice(generator) && asked_for > 0 ? asked_for : generator.usual_chunks;
}

PassCosts costs_of_a_chunk(const PassCosts& whole, double chunks) {
  return {whole.forward / chunks, whole.backward_input / chunks, whole.backward_weight / chunks, whole.transfer};
}

struct Request {
  std::vector<Drawn> schedules;  // one, or those to compare
  bool compares = false;
  ScheduleRequest shape;  // chunks_per_rank 0: as each schedule usually has; costs: of a rank's whole share
  Format format = Format::Text;
  std::string out;  // empty: standard output
  int columns = 80;
  bool color = false;
};

double chunks_of_rank(const Schedule& schedule) {
  return static_cast<double>(schedule.chunks) / static_cast<double>(schedule.by_rank.size());
}

void read_chunks(const Flags& flags, Request& request, Problems& problems) {
  request.shape.chunks_per_rank = 0;
  if (!flags.given("chunks") || flags.unreadable("chunks")) return;
  const size_t before = problems.size();
  const int64_t chunks = whole_number(flags, "chunks", 1, 1, most_chunks, problems);
  if (problems.size() > before) return;
  bool somebody_has_the_choice = false;
  for (const auto& [name, generator, own] : request.schedules) {
    if (own && !request.compares && chunks_of_rank(*own) != static_cast<double>(chunks))
      problems.push_back(fmt::format("--chunks: found {}, but {} has {} on {} ranks; allowed: leave it out", chunks,
                                     name, own->chunks, own->by_rank.size()));
    if (own) continue;
    if (!generator) return;
    const bool choice = has_the_choice(*generator);
    somebody_has_the_choice = somebody_has_the_choice || choice;
    if (generator->fewest_chunks <= chunks && chunks <= generator->most_chunks) continue;
    if (request.compares && !choice) continue;
    problems.push_back(fmt::format("--chunks: found {}, but {} has {} a rank; allowed: {}", chunks, generator->name,
                                   choice ? fmt::format("{} to {}", generator->fewest_chunks, generator->most_chunks)
                                          : fmt::format("always {}", generator->fewest_chunks),
                                   std::clamp<int64_t>(chunks, generator->fewest_chunks, generator->most_chunks)));
  }
  if (request.compares && !somebody_has_the_choice)
    problems.push_back(
        fmt::format("--chunks: found {}, but none of the schedules to compare leaves the choice", chunks));
  request.shape.chunks_per_rank = static_cast<uint16_t>(chunks);
}

// --pp or --micro-batches: what the files have where there are some, which must then agree with each other and with
// the flag; else the flag or its default.
uint16_t read_size(const Flags& flags, std::string_view flag, int64_t otherwise, int64_t most,
                   const std::function<size_t(const Schedule&)>& of, const Request& request, Problems& problems) {
  const Drawn* first = nullptr;
  for (const Drawn& drawn : request.schedules) {
    if (!drawn.own) continue;
    const size_t size = of(*drawn.own);
    if (!first) {
      first = &drawn;
      if (size > static_cast<size_t>(most))
        problems.push_back(
            fmt::format("--{}: found {} in {}, allowed in a picture: 1 to {}", flag, size, drawn.name, most));
    } else if (size != of(*first->own)) {
      problems.push_back(fmt::format("--compare: found --{} {} in {} and {} in {}, allowed: files with the same", flag,
                                     of(*first->own), first->name, size, drawn.name));
    }
  }
  if (!first) return static_cast<uint16_t>(whole_number(flags, flag, otherwise, 1, most, problems));
  const auto size = static_cast<int64_t>(of(*first->own));
  if (const int64_t asked_for = flags.value<int64_t>(flag, size); asked_for != size)
    problems.push_back(
        fmt::format("--{}: found {}, but {} has {}; allowed: {}", flag, asked_for, first->name, size, size));
  return static_cast<uint16_t>(size);
}

void read_schedules(const Flags& flags, Request& request, Problems& problems) {
  request.compares = flags.given("compare");
  if (request.compares && flags.given("schedule"))
    problems.emplace_back("--compare: found beside --schedule, allowed: one of them");
  const std::string_view flag = request.compares ? "compare" : "schedule";
  const std::vector<std::string> names = request.compares ? split(flags.text("compare", "1f1b"))
                                                          : std::vector<std::string>{flags.text("schedule", "1f1b")};
  for (const std::string& name : names) request.schedules.push_back(drawn_by(name, flag, problems));
  if (names.size() > most_compared)
    problems.push_back(fmt::format("--compare: found {} schedules, allowed: at most {}", names.size(), most_compared));

  ScheduleRequest& shape = request.shape;
  shape.ranks = read_size(
      flags, "pp", 4, most_ranks, [](const Schedule& schedule) { return schedule.by_rank.size(); }, request, problems);
  shape.micro_batches = read_size(
      flags, "micro-batches", 8, most_micro_batches, [](const Schedule& schedule) { return schedule.micro_batches; },
      request, problems);
  read_chunks(flags, request, problems);

  double chunks = 1;
  for (const Drawn& drawn : request.schedules) {
    if (drawn.generator) chunks = std::max<double>(chunks, chunks_of(*drawn.generator, shape.chunks_per_rank));
    if (drawn.own) chunks = std::max(chunks, chunks_of_rank(*drawn.own));
  }
  const double passes = shape.ranks * chunks * shape.micro_batches;
  if (passes > most_passes)
    problems.push_back(fmt::format(
        "--pp {} × --micro-batches {}{}: found {:.0f} forwards, allowed in one picture: {}; --micro-batches {} would "
        "be",
        shape.ranks, shape.micro_batches, chunks > 1 ? fmt::format(" × {:.3g} chunks", chunks) : "", passes,
        most_passes, std::max(1, static_cast<int>(most_passes / (shape.ranks * chunks)))));

  const std::string costs = flags.text("costs", "1,1,1,0");
  if (const std::optional<PassCosts> parsed = parse_costs(costs))
    shape.costs = *parsed;
  else
    problems.push_back(fmt::format("--costs: found '{}', allowed: {}", costs,
                                   allowed(*std::ranges::find(show_options(), std::string("costs"), &Option::name))));
}

void read_form(const Flags& flags, Request& request, Problems& problems) {
  request.out = flags.text("out", "");
  struct Known {
    Format format;
    std::string_view name, ending;
  };
  constexpr Known table[] = {{Format::Text, "text", ".txt"},
                             {Format::Svg, "svg", ".svg"},
                             {Format::Perfetto, "perfetto", ".json"},
                             {Format::Schedule, "schedule", ".schedule"},
                             {Format::Csv, "csv", ".csv"}};
  std::string format = "text";
  for (const Known& known : table)
    if (request.out.ends_with(known.ending)) format = known.name;
  format = flags.text("format", format);
  for (const Known& known : table)
    if (format == known.name) request.format = known.format;
  if (request.format != Format::Text && request.format != Format::Svg && request.compares &&
      !flags.unreadable("format"))
    problems.push_back(fmt::format("--format {}: found beside --compare, allowed with it: text, svg", format));
  if (request.format != Format::Text && !flags.unreadable("format"))
    for (const std::string_view name : {"width", "color"})
      if (flags.given(name))
        problems.push_back(fmt::format("--{}: found beside --format {}, allowed: with --format text", name, format));

  const bool shown = request.out.empty();  // in the terminal, if there is one
  const int64_t columns = shown ? std::max<int64_t>(terminal_columns(STDOUT_FILENO), narrowest) : 80;
  request.columns = static_cast<int>(whole_number(flags, "width", columns, narrowest, widest, problems));
  const std::string color = flags.text("color", "auto");
  const char* no_color = std::getenv("NO_COLOR");
  const bool refused = no_color && *no_color != '\0';
  request.color = color == "always" || (color == "auto" && shown && !refused && is_terminal(STDOUT_FILENO));
}

Request read_request(const Settings& settings) {
  const Flags flags(settings);
  Problems problems = settings.problems;
  Request request;
  read_schedules(flags, request, problems);
  read_form(flags, request, problems);
  if (!problems.empty()) throw InputError(problems);
  return request;
}

// Costs are of a rank's whole share of the model, so that schedules with more chunks do the same work.
Schedule schedule_of(const Drawn& drawn, ScheduleRequest request) {
  if (drawn.own) return *drawn.own;
  request.chunks_per_rank = chunks_of(*drawn.generator, request.chunks_per_rank);
  request.costs = costs_of_a_chunk(request.costs, request.chunks_per_rank);
  return make_schedule(drawn.name, request);
}

std::string in_words(const PassCosts& costs, std::string_view of_chunks) {
  return fmt::format(
      "A rank's forward of a micro-batch takes {}, its backward {} for the input part and {} for the weight part{}{}.",
      short_number(costs.forward), short_number(costs.backward_input), short_number(costs.backward_weight),
      costs.transfer > 0 ? fmt::format(", a message {}", short_number(costs.transfer)) : "", of_chunks);
}

// In a form that the text format can hold: a name out of a file's may have anything in it.
std::string print_own(Schedule schedule) {
  std::ranges::replace_if(
      schedule.name, [](char c) { return c == '#' || static_cast<unsigned char>(c) < ' '; }, '-');
  if (schedule.name.find_first_not_of(' ') == std::string::npos) schedule.name = "unnamed";
  return print_schedule(schedule);
}

Picture draw(const Drawn& drawn, const ScheduleRequest& request) {
  const Schedule schedule = schedule_of(drawn, request);
  const double chunks = chunks_of_rank(schedule);
  const PassCosts costs = costs_of_a_chunk(request.costs, chunks);
  Picture picture = picture_of(schedule, time_cells(schedule, {&costs, 1}));
  picture.costs = in_words(request.costs, chunks > 1 ? fmt::format("; each chunk 1/{:.3g} of that", chunks) : "");
  return picture;
}

std::string render(const std::vector<Picture>& pictures, const Request& request) {
  switch (request.format) {
    case Format::Text:
      return to_text(pictures, {.columns = request.columns, .color = request.color});
    case Format::Svg:
      return to_svg(pictures);
    case Format::Perfetto:
      return to_chrome_trace(trace_spans(pictures.front(), 1e-3), pictures.front().title);
    case Format::Schedule:
      return print_own(schedule_of(request.schedules.front(), request.shape));
    case Format::Csv:
      return print_torch_csv(schedule_of(request.schedules.front(), request.shape));
  }
  throw InvariantError("a format that nobody draws");
}

void write_file(const std::string& path, const std::string& text) {
  const auto refuse = [&](int error) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code ignored;
    if (!folder.empty() && !std::filesystem::exists(folder, ignored))
      throw InputError(
          fmt::format("--out {}: found no folder {}, allowed: a file in one that exists", path, folder.string()));
    throw InputError(fmt::format("--out {}: cannot be written: {}", path, std::strerror(error)));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), std::fclose);
  if (!file) refuse(errno);
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() || std::fflush(file.get()) != 0)
    refuse(errno);
}

constexpr std::string_view hint =
    "\nThis is the default. Try --compare, --costs 1,1.2,0.8,0.1, --out picture.svg, or --help.\n";

}  // namespace

int show_command(std::span<const std::string> arguments) {
  const Arguments read = read_arguments(Command::Show, arguments);
  if (read.help) {
    fmt::print("{}", help_of(Command::Show));
    return 0;
  }
  const Request request = read_request(read.settings);
  std::vector<Picture> pictures;
  for (const Drawn& drawn : request.schedules) pictures.push_back(draw(drawn, request.shape));
  if (std::ranges::any_of(pictures, [](const Picture& picture) { return picture.chunks_of_rank > 1; }) &&
      request.compares)
    pictures.front().costs = in_words(request.shape.costs, "; one of v chunks a v-th of that");
  const std::string text = render(pictures, request);
  if (request.out.empty()) {
    fmt::print("{}{}", text, arguments.empty() ? hint : "");
    return 0;
  }
  write_file(request.out, text);
  for (const Picture& picture : pictures) {
    const PictureFigures figures = figures_of(picture);
    fmt::print("{}: {}; step {}, bubble {}\n", request.out, picture.title, short_number(figures.step),
               percent(figures.bubble));
  }
  return 0;
}

}  // namespace shardpipe::cli
