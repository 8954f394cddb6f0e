// What a store gives of the disk that it lies on: bytes a second through Store, in pieces as an optimizer step streams
// them, over those of a plain sequential read and write (blocks of 4 MiB, one after the other) of another file in the
// same directory. Each alone, and both at once from two threads. The two ways take turns, and the one that begins
// changes, so that a disk that gets slower or busier changes both.
//
//   build/bench/bench_store DIR --bytes 1073741824 --piece 8388608 --pairs 5
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <system_error>
#include <vector>

#include "device/arena.h"
#include "device/store.h"

using namespace shardpipe;

namespace {

constexpr double aim = 0.8;  // of the plain bytes a second
constexpr uint64_t plain_block_bytes = uint64_t{4} << 20;

struct Options {
  std::string directory;
  uint64_t bytes = uint64_t{1} << 30, piece = uint64_t{8} << 20, pairs = 5;
};

// A file of two halves that nobody uses but this program: the first is read, the second written.
class PlainFile {
 public:
  PlainFile(const std::string& directory, uint64_t bytes, bool direct) {
    std::string name = directory + "/bench-store-XXXXXX";
    descriptor_ = mkostemp(name.data(), O_CLOEXEC | (direct ? O_DIRECT : 0));
    require(descriptor_ >= 0, "a file in " + directory);
    unlink(name.c_str());
    const int error = posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes));
    errno = error;
    require(error == 0, "room in " + directory);
  }
  ~PlainFile() { close(descriptor_); }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  void read(uint64_t offset, std::span<std::byte> to) const {
    require(pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset)) == std::ssize(to), "a read");
  }
  void write(uint64_t offset, std::span<const std::byte> from) const {
    require(pwrite(descriptor_, from.data(), from.size(), static_cast<off_t>(offset)) == std::ssize(from), "a write");
  }

 private:
  static void require(bool holds, const std::string& what) {
    if (!holds) throw std::system_error(errno, std::generic_category(), what);
  }
  int descriptor_ = -1;
};

// One way to the disk: all of the half that is read, or written, from its beginning to its end.
struct Way {
  std::function<void()> read, write;
};

// `file` is a PlainFile or a Store.
template <typename File>
Way in_pieces(File& file, uint64_t bytes, uint64_t piece, const Arena& to, const Arena& from) {
  const auto each_piece = [bytes, piece](const auto& move) {
    for (uint64_t done = 0; done < bytes; done += piece) move(done, std::min(piece, bytes - done));
  };
  return {.read = [=, &file,
                   &to] { each_piece([&](uint64_t at, uint64_t count) { file.read(at, to.memory().first(count)); }); },
          .write =
              [=, &file, &from] {
                each_piece([&](uint64_t at, uint64_t count) { file.write(bytes + at, from.memory().first(count)); });
              }};
}

struct Case {
  std::string name;
  uint64_t moved;  // by one run
  std::function<void(const Way&)> run;
  std::array<std::vector<double>, 2> bytes_per_second{};  // plain, store
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

double seconds_of(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void compare(const Options& options) {
  const StoreDirectory found = look_at_store_directory(options.directory);
  const std::unique_ptr<Store> store = make_file_store(options.directory, 2 * options.bytes);
  PlainFile file(options.directory, 2 * options.bytes, found.direct);
  const Arena to(std::max(options.piece, plain_block_bytes)), from(to.size());
  std::memset(from.at(0), 0x5A, from.size());
  const std::array<Way, 2> ways{in_pieces(file, options.bytes, plain_block_bytes, to, from),
                                in_pieces(*store, options.bytes, options.piece, to, from)};
  // Blocks that were allocated but never written are slower to write and need no disk to be read.
  for (uint64_t done = 0; done < 2 * options.bytes; done += plain_block_bytes) {
    const auto piece = from.memory().first(std::min(plain_block_bytes, 2 * options.bytes - done));
    file.write(done, piece);
    store->write(done, piece);
  }

  std::vector<Case> cases;
  cases.push_back({"read", options.bytes, [](const Way& way) { way.read(); }});
  cases.push_back({"write", options.bytes, [](const Way& way) { way.write(); }});
  cases.push_back({"read and write at once", 2 * options.bytes, [](const Way& way) {
                     auto writes = std::async(std::launch::async, way.write);
                     way.read();
                     writes.get();
                   }});
  for (uint64_t pair = 0; pair < options.pairs; ++pair)
    for (Case& each : cases)
      for (const size_t turn : {0, 1}) {
        const size_t way = (pair + turn) % 2;
        const double seconds = seconds_of([&] { each.run(ways[way]); });
        each.bytes_per_second[way].push_back(static_cast<double>(each.moved) / seconds);
      }

  fmt::print("{}: {}, {}{}\n", options.directory, found.direct ? "direct I/O" : "through the page cache",
             found.io_uring ? "io_uring" : "one request after the other (no io_uring)",
             found.in_memory ? "; it lies in memory, so no disk is measured" : "");
  fmt::print("{} MiB a run in pieces of {} KiB against blocks of {} KiB; medians of {} pairs, MB/s (10^6 bytes)\n\n",
             options.bytes >> 20, options.piece >> 10, plain_block_bytes >> 10, options.pairs);
  fmt::print("{:<24}{:>9}{:>9}{:>8}{:>16}{:>6}\n", "", "plain", "store", "ratio", "least, most", "aim");
  for (const Case& each : cases) {
    const auto& [plain, through_store] = each.bytes_per_second;
    std::vector<double> ratios;
    for (size_t pair = 0; pair < plain.size(); ++pair) ratios.push_back(through_store[pair] / plain[pair]);
    const auto [least, most] = std::ranges::minmax(ratios);
    fmt::print("{:<24}{:>9.0f}{:>9.0f}{:>8.2f}{:>16}{:>6.1f}{}\n", each.name, median(plain) / 1e6,
               median(through_store) / 1e6, median(ratios), fmt::format("{:.2f}, {:.2f}", least, most), aim,
               median(ratios) < aim ? "  MISSED" : "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Bytes a second through a store, over plain sequential ones in the same directory");
  app.add_option("directory", options.directory, "where both files are made")->required();
  const CLI::Range allowed(uint64_t{1}, uint64_t{1} << 50);
  app.add_option("--bytes", options.bytes, "that a run reads, or writes; a multiple of 4096")->check(allowed);
  app.add_option("--piece", options.piece, "bytes of one transfer of the store; a multiple of 4096")->check(allowed);
  app.add_option("--pairs", options.pairs, "how often both take their turn")->check(allowed);
  CLI11_PARSE(app, argc, argv);
  try {
    for (const uint64_t bytes : {options.bytes, options.piece})
      if (bytes % Store::alignment != 0) throw std::invalid_argument(fmt::format("{} is no multiple of 4096", bytes));
    compare(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_store: {}\n", error.what());
    return 1;
  }
}
