#include "comm/local/local_world.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "comm/local/hall.h"
#include "kernels/cpu/copy.h"
#include "kernels/cpu/exact_sum.h"
#include "kernels/cpu/optimizer.h"

namespace shardpipe {
namespace {

using local::Call;
using local::Hall;
using local::Operation;
using local::Terms;

constexpr uint64_t chunk_elements = 2048;  // a sum on its way to several outputs stays in the first-level cache
constexpr uint64_t line_elements = 16;     // cuts between ranks fall on cache lines

template <typename Term>
constexpr Terms terms_of = std::same_as<Term, float>      ? Terms::Floats
                           : std::same_as<Term, BFloat16> ? Terms::BFloat16s
                                                          : Terms::Integers;

template <typename T>
void copy(const T* src, T* dst, uint64_t count) {
  if (src != dst && count > 0) std::memcpy(dst, src, count * sizeof(T));
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Hall> hall, int rank)
      : hall_(std::move(hall)),
        rank_(rank),
        size_(static_cast<int>(hall_->world_ranks().size())),
        inputs_(ranks()),
        rounded_inputs_(ranks()),
        integer_inputs_(ranks()),
        double_inputs_(ranks()) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void send(std::span<const std::byte> bytes, int to) override {
    check_peer(to, "send to");
    hall_->exchange(rank_, {.operation = Operation::Send, .count = bytes.size(), .peer = to, .in = bytes.data()});
    wire_bytes_.send += bytes.size();
  }

  void receive(std::span<std::byte> bytes, int from) override {
    check_peer(from, "receive from");
    hall_->exchange(rank_, {.operation = Operation::Receive, .count = bytes.size(), .peer = from, .out = bytes.data()});
  }

  void all_gather(std::span<const std::byte> shard, std::span<std::byte> whole) override {
    check_whole(whole.size(), shard.size(), "all_gather", "bytes");
    const auto calls = hall_->meet(
        rank_, {.operation = Operation::AllGather, .count = whole.size(), .in = shard.data(), .out = whole.data()});
    for (size_t from = 0; from < ranks(); ++from) {
      const auto* src = static_cast<const std::byte*>(calls[from].in);
      std::byte* dst = whole.data() + from * shard.size();
      if (src != dst) kernels::copy_past_caches(src, dst, static_cast<int64_t>(shard.size()));
    }
    hall_->part(rank_);
    wire_bytes_.all_gather += shard.size() * (ranks() - 1);
  }

  void reduce_scatter(std::span<const float> whole, std::span<float> shard, bool accumulate) override {
    scatter_sums(whole, std::span(inputs_), shard, accumulate);
  }
  void reduce_scatter(std::span<const BFloat16> whole, std::span<float> shard, bool accumulate) override {
    scatter_sums(whole, std::span(rounded_inputs_), shard, accumulate);
  }
  void reduce_scatter(std::span<const int64_t> whole, std::span<int64_t> shard, bool accumulate) override {
    scatter_sums(whole, std::span(integer_inputs_), shard, accumulate);
  }

  void all_reduce(std::span<const float> in, std::span<float> out, bool accumulate) override {
    share_sums(in, std::span(inputs_), out, accumulate);
  }
  void all_reduce(std::span<const BFloat16> in, std::span<float> out, bool accumulate) override {
    share_sums(in, std::span(rounded_inputs_), out, accumulate);
  }
  void all_reduce(std::span<const int64_t> in, std::span<int64_t> out, bool accumulate) override {
    share_sums(in, std::span(integer_inputs_), out, accumulate);
  }

  void all_reduce(std::span<double> values) override {
    const auto calls = hall_->meet(
        rank_,
        {.operation = Operation::ScalarAllReduce, .count = values.size(), .in = values.data(), .out = values.data()});
    sum_slice<double, double>(calls, std::span(double_inputs_), values.size(), false);
    hall_->part(rank_);
    wire_bytes_.scalar_all_reduce += 2 * sharded_wire_bytes(values.size(), ranks(), sizeof(double));
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    check_invariant(root >= 0 && root < size_, "group '{}', rank {}: broadcast from rank {} of {}", hall_->name(),
                    rank_, root, size_);
    const auto calls = hall_->meet(rank_, {.operation = Operation::Broadcast,
                                           .count = bytes.size(),
                                           .peer = root,
                                           .in = bytes.data(),
                                           .out = bytes.data()});
    copy(static_cast<const std::byte*>(calls[static_cast<size_t>(root)].in), bytes.data(), bytes.size());
    hall_->part(rank_);
    if (rank_ == root) wire_bytes_.broadcast += bytes.size() * (ranks() - 1);
  }

  void barrier() override { hall_->meet(rank_, {.operation = Operation::Barrier}); }

 private:
  size_t ranks() const { return static_cast<size_t>(size_); }

  void check_peer(int peer, const char* what) const {
    check_invariant(peer >= 0 && peer < size_ && peer != rank_, "group '{}', rank {}: {} rank {} of {}", hall_->name(),
                    rank_, what, peer, size_);
  }

  void check_whole(size_t whole, size_t shard, const char* what, const char* unit) const {
    check_invariant(whole == shard * ranks(), "group '{}', rank {}: {} of {} {} is not {} ranks × {}", hall_->name(),
                    rank_, what, whole, unit, size_, shard);
  }

  template <typename Term, typename Sum>
  void scatter_sums(std::span<const Term> whole, std::span<const Term*> inputs, std::span<Sum> shard, bool accumulate) {
    check_whole(whole.size(), shard.size(), "reduce_scatter", local::plural_of(terms_of<Term>));
    const auto calls = hall_->meet(rank_, {.operation = Operation::ReduceScatter,
                                           .count = whole.size(),
                                           .accumulate = accumulate,
                                           .terms = terms_of<Term>,
                                           .in = whole.data(),
                                           .out = shard.data()});
    const uint64_t begin = static_cast<uint64_t>(rank_) * shard.size();
    for (size_t from = 0; from < ranks(); ++from) inputs[from] = static_cast<const Term*>(calls[from].in) + begin;
    kernels::sum_in_order(inputs.data(), size_, shard.data(), static_cast<int64_t>(shard.size()), accumulate);
    hall_->part(rank_);
    wire_bytes_.reduce_scatter += sharded_wire_bytes(whole.size(), ranks(), sizeof(Term));
  }

  template <typename Term, typename Sum>
  void share_sums(std::span<const Term> in, std::span<const Term*> inputs, std::span<Sum> out, bool accumulate) {
    check_invariant(in.size() == out.size(), "group '{}', rank {}: all_reduce of {} {} into {}", hall_->name(), rank_,
                    in.size(), local::plural_of(terms_of<Term>), out.size());
    const auto calls = hall_->meet(rank_, {.operation = Operation::AllReduce,
                                           .count = in.size(),
                                           .accumulate = accumulate,
                                           .terms = terms_of<Term>,
                                           .in = in.data(),
                                           .out = out.data()});
    sum_slice<Term, Sum>(calls, inputs, in.size(), accumulate);
    hall_->part(rank_);
    wire_bytes_.all_reduce +=
        sharded_wire_bytes(in.size(), ranks(), sizeof(Term)) + sharded_wire_bytes(in.size(), ranks(), sizeof(Sum));
  }

  // Each rank sums its slice of all inputs, a chunk at a time, and writes the chunk to all outputs. A slice is read and
  // written by no other rank, and a chunk is written only after it was read, so outputs may be inputs.
  template <typename Term, typename T>
  void sum_slice(std::span<const Call> calls, std::span<const Term*> inputs, uint64_t count, bool accumulate) {
    const uint64_t lines = (count + line_elements - 1) / line_elements;
    const auto cut = [&](uint64_t rank) { return std::min(count, lines * rank / ranks() * line_elements); };
    const uint64_t end = cut(static_cast<uint64_t>(rank_) + 1);
    alignas(64) std::array<T, chunk_elements> sum;
    const T* const sum_data = sum.data();
    for (uint64_t begin = cut(static_cast<uint64_t>(rank_)); begin < end; begin += chunk_elements) {
      const uint64_t elements = std::min(chunk_elements, end - begin);
      for (size_t from = 0; from < ranks(); ++from) inputs[from] = static_cast<const Term*>(calls[from].in) + begin;
      kernels::sum_in_order(inputs.data(), size_, sum.data(), static_cast<int64_t>(elements), false);
      for (const Call& call : calls) {
        T* out = static_cast<T*>(call.out) + begin;
        if (accumulate) {
          kernels::sum_in_order(&sum_data, 1, out, static_cast<int64_t>(elements), true);
        } else {
          copy(sum_data, out, elements);
        }
      }
    }
  }

  const std::shared_ptr<Hall> hall_;
  const int rank_, size_;
  std::vector<const float*> inputs_;  // where each member's part of a sum is
  std::vector<const BFloat16*> rounded_inputs_;
  std::vector<const int64_t*> integer_inputs_;
  std::vector<const double*> double_inputs_;
};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an exception without a text";
  }
}

}  // namespace

LocalWorld::LocalWorld(int ranks) : ranks_(ranks) { check_invariant(ranks >= 1, "a world of {} ranks", ranks); }
LocalWorld::~LocalWorld() = default;

std::unique_ptr<Communicator> LocalWorld::join(const std::string& name, const std::vector<int>& members,
                                               int world_rank) {
  const auto place = std::ranges::find(members, world_rank);
  check_invariant(place != members.end(), "world rank {} joins group '{}' of {}, and is no member of it", world_rank,
                  name, fmt::join(members, " "));
  for (size_t i = 0; i < members.size(); ++i) {
    check_invariant(members[i] >= 0 && members[i] < ranks_, "group '{}': there is no world rank {} of {}", name,
                    members[i], ranks_);
    check_invariant(std::find(members.begin(), members.begin() + static_cast<ptrdiff_t>(i), members[i]) ==
                        members.begin() + static_cast<ptrdiff_t>(i),
                    "group '{}': world rank {} is listed twice", name, members[i]);
  }
  const auto rank = static_cast<size_t>(place - members.begin());

  const std::scoped_lock lock(mutex_);
  if (first_error_) throw Aborted(reason_);
  for (Group& group : groups_) {
    if (group.hall->name() != name) continue;
    const std::vector<int>& others = group.hall->world_ranks();
    if (others == members) {
      check_invariant(!group.joined[rank], "world rank {} joins group '{}' twice", world_rank, name);
      group.joined[rank] = true;
      return std::make_unique<LocalCommunicator>(group.hall, static_cast<int>(rank));
    }
    check_invariant(std::ranges::none_of(members, [&](int member) { return std::ranges::count(others, member) > 0; }),
                    "group '{}' is {} for one member and {} for another", name, fmt::join(others, " "),
                    fmt::join(members, " "));
  }
  Group& group = groups_.emplace_back(
      Group{.hall = std::make_shared<Hall>(name, members), .joined = std::vector<bool>(members.size(), false)});
  group.joined[rank] = true;
  return std::make_unique<LocalCommunicator>(group.hall, static_cast<int>(rank));
}

void LocalWorld::abort(std::exception_ptr error, int world_rank) noexcept {
  const std::scoped_lock lock(mutex_);
  if (first_error_) return;
  first_error_ = std::move(error);
  reason_ = fmt::format("stopped because rank {} failed: {}", world_rank, text_of(first_error_));
  for (const Group& group : groups_) group.hall->abort(reason_);
}

std::exception_ptr LocalWorld::first_error() const {
  const std::scoped_lock lock(mutex_);
  return first_error_;
}

void run_ranks(LocalWorld& world, const std::function<void(int world_rank)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    try {
      threads.emplace_back([&world, &body, rank] {
        pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
        try {
          body(rank);
        } catch (...) {
          world.abort(std::current_exception(), rank);
        }
      });
    } catch (...) {  // no more threads: the ranks that run would wait for this one
      world.abort(std::current_exception(), rank);
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (const std::exception_ptr error = world.first_error()) std::rethrow_exception(error);
}

}  // namespace shardpipe
