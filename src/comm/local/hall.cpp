#include "comm/local/hall.h"

#include <cstring>

#include "base/error.h"
#include "comm/communicator.h"

namespace shardpipe::local {
namespace {

bool is_pairwise(const Call& call) { return call.operation == Operation::Send || call.operation == Operation::Receive; }

bool same_collective(const Call& one, const Call& other) {
  return one.operation == other.operation && one.count == other.count && one.peer == other.peer &&
         one.accumulate == other.accumulate && one.terms == other.terms;
}

bool sender_and_receiver(const Call& one, const Call& other) {
  return one.count == other.count && ((one.operation == Operation::Send && other.operation == Operation::Receive) ||
                                      (one.operation == Operation::Receive && other.operation == Operation::Send));
}

// Whether two members that are both waiting can never go on. Members that wait for third ones are no conflict yet.
bool conflict(int rank, const Call& call, int other_rank, const Call& other) {
  if (!is_pairwise(call) && !is_pairwise(other)) return !same_collective(call, other);
  if (is_pairwise(call) && is_pairwise(other)) {
    return call.peer == other_rank && other.peer == rank && !sender_and_receiver(call, other);
  }
  // A pairwise call whose partner waits in a collective, which needs the caller as well.
  return is_pairwise(call) ? call.peer == other_rank : other.peer == rank;
}

}  // namespace

const char* plural_of(Terms terms) {
  return terms == Terms::Floats ? "floats" : terms == Terms::BFloat16s ? "bfloat16s" : "integers";
}

std::string to_string(const Call& call) {
  const char* added = call.accumulate ? ", accumulated" : "";
  const char* terms = plural_of(call.terms);
  switch (call.operation) {
    case Operation::Barrier:
      return "barrier";
    case Operation::Send:
      return fmt::format("send of {} bytes to rank {}", call.count, call.peer);
    case Operation::Receive:
      return fmt::format("receive of {} bytes from rank {}", call.count, call.peer);
    case Operation::AllGather:
      return fmt::format("all_gather of {} bytes", call.count);
    case Operation::ReduceScatter:
      return fmt::format("reduce_scatter of {} {}{}", call.count, terms, added);
    case Operation::AllReduce:
      return fmt::format("all_reduce of {} {}{}", call.count, terms, added);
    case Operation::ScalarAllReduce:
      return fmt::format("all_reduce of {} doubles", call.count);
    case Operation::Broadcast:
      return fmt::format("broadcast of {} bytes from rank {}", call.count, call.peer);
  }
  throw InvariantError("an operation without a name");
}

Hall::Hall(std::string name, std::vector<int> world_ranks)
    : name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      calls_(world_ranks_.size()),
      members_(world_ranks_.size()) {}

std::span<const Call> Hall::meet(int rank, const Call& call) {
  std::unique_lock lock(mutex_);
  arrive(lock, rank, call);
  if (++arrived_ < members_.size()) {
    wait_while_waiting(lock, rank);
    return calls_;
  }
  arrived_ = 0;
  parted_ = 0;
  for (Member& member : members_) {
    member.phase = call.operation == Operation::Barrier ? Phase::Away : Phase::Meeting;
    member.wake.notify_one();
  }
  return calls_;
}

void Hall::part(int rank) {
  std::unique_lock lock(mutex_);
  Member& self = members_[static_cast<size_t>(rank)];
  if (++parted_ < members_.size()) {
    self.wake.wait(lock, [&] { return self.phase == Phase::Away; });
    return;
  }
  for (Member& member : members_) {
    member.phase = Phase::Away;
    member.wake.notify_one();
  }
}

void Hall::exchange(int rank, const Call& call) {
  std::unique_lock lock(mutex_);
  arrive(lock, rank, call);
  Member& self = members_[static_cast<size_t>(rank)];
  Member& peer = members_[static_cast<size_t>(call.peer)];
  const Call& other = calls_[static_cast<size_t>(call.peer)];
  if (peer.phase == Phase::Waiting && is_pairwise(other) && other.peer == rank) {  // the second to come copies
    self.phase = peer.phase = Phase::Meeting;
    lock.unlock();
    const bool sends = call.operation == Operation::Send;
    if (call.count > 0) std::memcpy(sends ? other.out : call.out, sends ? call.in : other.in, call.count);
    lock.lock();
    self.phase = peer.phase = Phase::Away;
    peer.wake.notify_one();
    return;
  }
  wait_while_waiting(lock, rank);
  self.wake.wait(lock, [&] { return self.phase == Phase::Away; });
}

void Hall::abort(const std::string& reason) {
  std::unique_lock lock(mutex_);
  set_broken(reason, true);
}

// Puts the call where the others see it, unless nobody can meet here any more.
void Hall::arrive(std::unique_lock<std::mutex>&, int rank, const Call& call) {
  if (!broken_.empty()) throw_broken();
  Member& self = members_[static_cast<size_t>(rank)];
  if (self.phase != Phase::Away) {
    throw InvariantError(fmt::format("group '{}', rank {}: two threads use its communicator at once: {}, then {}",
                                     name_, rank, to_string(calls_[static_cast<size_t>(rank)]), to_string(call)));
  }
  self.phase = Phase::Waiting;
  calls_[static_cast<size_t>(rank)] = call;
  refuse_conflicts(rank);
}

void Hall::wait_while_waiting(std::unique_lock<std::mutex>& lock, int rank) {
  Member& self = members_[static_cast<size_t>(rank)];
  self.wake.wait(lock, [&] { return self.phase != Phase::Waiting || !broken_.empty(); });
  if (self.phase == Phase::Waiting) {
    self.phase = Phase::Away;
    throw_broken();
  }
}

void Hall::refuse_conflicts(int rank) {
  const Call& call = calls_[static_cast<size_t>(rank)];
  for (size_t other = 0; other < members_.size(); ++other) {
    const int other_rank = static_cast<int>(other);
    if (other_rank == rank || members_[other].phase != Phase::Waiting) continue;
    if (!conflict(rank, call, other_rank, calls_[other])) continue;
    set_broken(fmt::format("group '{}': rank {} (world rank {}) calls {}, but rank {} (world rank {}) calls {}", name_,
                           other_rank, world_ranks_[other], to_string(calls_[other]), rank,
                           world_ranks_[static_cast<size_t>(rank)], to_string(call)),
               false);
    members_[static_cast<size_t>(rank)].phase = Phase::Away;
    throw_broken();
  }
}

void Hall::set_broken(std::string text, bool aborted) {
  if (!broken_.empty()) return;
  broken_ = std::move(text);
  aborted_ = aborted;
  for (Member& member : members_) member.wake.notify_one();
}

// A fresh exception for each thread: they are caught and destroyed at the same time.
void Hall::throw_broken() const {
  if (aborted_) throw Aborted(broken_);
  throw InvariantError(broken_);
}

}  // namespace shardpipe::local
