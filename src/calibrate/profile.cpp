#include "calibrate/profile.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/run_folder.h"

namespace shardpipe {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t version = 1;

Json json_of(const std::vector<Efficiency>& curve) {
  Json points = Json::array();
  for (const Efficiency& point : curve) points.push_back({{"flops", point.flops}, {"share_of_peak", point.share}});
  return points;
}

// Takes keys out of an object and notes what is wrong with them.
class Reader {
 public:
  Reader(const Json& json, std::string name) : json_(json), name_(std::move(name)) {}

  double number(const Json& object, const std::string& prefix, const char* key, double least, double most) {
    const Json* value = find(object, prefix, key, "a number");
    if (value == nullptr) return least;
    const double found = value->is_number() ? value->get<double>() : NAN;
    if (!(found >= least && found <= most)) {
      problem(prefix + key, value->dump(), fmt::format("a number, {:g} to {:g}", least, most));
      return least;
    }
    return found;
  }
  double number(const char* key, double least, double most) { return number(json_, "", key, least, most); }

  std::string text(const char* key) {
    const Json* value = find(json_, "", key, "a text");
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    problem(key, value->dump(), "a text");
    return {};
  }

  std::vector<Efficiency> curve(const char* key) {
    std::vector<Efficiency> points;
    const Json* value = find(json_, "", key, "a list of points");
    if (value == nullptr) return points;
    constexpr std::string_view allowed = "a list of 1 to 1000 points by ascending flops";
    if (!value->is_array() || value->empty() || value->size() > 1000) {
      problem(key, value->is_array() ? fmt::format("{} points", value->size()) : value->dump(), allowed);
      return points;
    }
    for (size_t i = 0; i < value->size(); ++i) {
      const std::string prefix = fmt::format("{}[{}].", key, i);
      const Json& point = (*value)[i];
      if (!point.is_object()) {
        problem(fmt::format("{}[{}]", key, i), point.dump(), "an object with flops and share_of_peak");
        return points;
      }
      const size_t before = problems_.size();
      points.push_back({number(point, prefix, "flops", 1, 1e18), number(point, prefix, "share_of_peak", 1e-9, 1)});
      if (before == problems_.size() && i > 0 && points[i].flops <= points[i - 1].flops)
        problem(prefix + "flops", fmt::format("{:g} after {:g}", points[i].flops, points[i - 1].flops), allowed);
    }
    return points;
  }

  void finish() const {
    if (!problems_.empty()) throw InputError(problems_);
  }

 private:
  const Json* find(const Json& object, const std::string& prefix, const char* key, std::string_view allowed) {
    const auto found = object.find(key);
    if (found != object.end()) return &*found;
    problem(prefix + key, "none", allowed);
    return nullptr;
  }
  void problem(std::string_view key, std::string_view found, std::string_view allowed) {
    problems_.push_back(fmt::format("{}: {}: found {}, allowed: {}", name_, key, found, allowed));
  }

  const Json& json_;
  std::string name_;
  std::vector<std::string> problems_;
};

constexpr double least_rate = 1, most_rate = 1e18;     // a second
constexpr double most_seconds = 10, least_second = 0;  // a latency
constexpr double least_count = 1, most_bytes = 1e18;

constexpr std::string_view where_it_can_be_written = "a file in a folder that can be written and has room";

[[noreturn]] void cannot_write(const std::filesystem::path& path, int error) {
  throw InputError(fmt::format("--profile {}: found that it cannot be written ({}), allowed: {}", path.string(),
                               std::strerror(error), where_it_can_be_written));
}

}  // namespace

std::string to_json(const Profile& profile) {
  const Device& device = profile.device;
  const Json json{{"shardpipe_profile_version", version},
                  {"processor", profile.processor},
                  {"library", profile.library},
                  {"cores", profile.cores},
                  {"memory_bytes", profile.memory_bytes},
                  {"peak_flops_per_second_fp32", device.peak_flops_fp32},
                  {"peak_flops_per_second_bf16", device.peak_flops},
                  {"products_fp32", json_of(device.products_fp32)},
                  {"products_bf16", json_of(device.products)},
                  {"memory_bytes_per_second", device.memory_bytes_per_second},
                  {"update_seconds_per_byte", device.update.seconds_per_byte},
                  {"copy_seconds_per_byte", device.host.seconds_per_byte},
                  {"message_latency_seconds", device.link.fixed_seconds},
                  {"message_seconds_per_byte", device.link.seconds_per_byte},
                  {"collective_latency_seconds", device.collective.fixed_seconds},
                  {"collective_seconds_per_byte", device.collective.seconds_per_byte}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Profile profile_of_json(std::string_view text, const std::string& name) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object())
    throw InputError(fmt::format("{}: found no whole JSON object, allowed: a file that --calibrate wrote", name));
  Reader read(json, name);
  read.number("shardpipe_profile_version", version, version);
  read.finish();  // another version has other keys
  Profile profile{.processor = read.text("processor"), .library = read.text("library")};
  profile.cores = static_cast<uint64_t>(read.number("cores", least_count, 1e6));
  profile.memory_bytes = static_cast<uint64_t>(read.number("memory_bytes", least_count, most_bytes));
  Device& device = profile.device;
  const auto per_byte = [&](const char* key) { return read.number(key, 1 / most_rate, 1 / least_rate); };
  const auto latency = [&](const char* key) { return read.number(key, least_second, most_seconds); };
  device.name = "cpu";
  device.peak_flops_fp32 = read.number("peak_flops_per_second_fp32", least_rate, most_rate);
  device.peak_flops = read.number("peak_flops_per_second_bf16", least_rate, most_rate);
  device.products_fp32 = read.curve("products_fp32");
  device.products = read.curve("products_bf16");
  device.memory_bytes_per_second = read.number("memory_bytes_per_second", least_rate, most_rate);
  device.update = {0, per_byte("update_seconds_per_byte")};
  device.host = {0, per_byte("copy_seconds_per_byte")};
  device.link.fixed_seconds = latency("message_latency_seconds");
  device.link.seconds_per_byte = per_byte("message_seconds_per_byte");
  device.collective.fixed_seconds = latency("collective_latency_seconds");
  device.collective.seconds_per_byte = per_byte("collective_seconds_per_byte");
  device.source = "measured on " + profile.processor + ", " + profile.library;
  read.finish();
  return profile;
}

Profile read_profile(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    throw InputError(
        fmt::format("--profile {}: found no such file, allowed: one that a run with --calibrate wrote; run with "
                    "--calibrate",
                    path.string()));
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file)
    throw InputError(fmt::format("--profile {}: found a file that cannot be read, allowed: a profile", path.string()));
  return profile_of_json(text, path.string());
}

void check_can_write_profile(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) cannot_write(path, EISDIR);
  const std::string temporary = path.string() + ".tmp";
  const int descriptor = open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) cannot_write(path, errno);
  close(descriptor);
  unlink(temporary.c_str());
}

void write_profile(const Profile& profile, const std::filesystem::path& path) try {
  write_file_atomically(path, to_json(profile));
} catch (const std::runtime_error& error) {
  throw InputError(fmt::format("--profile: found that {}, allowed: {}", error.what(), where_it_can_be_written));
}

}  // namespace shardpipe
