// How the ranks of a group exchange bytes: the whole contract, whatever carries it (threads of this process, MPI,
// NCCL).
//
// Blocking: a call returns when its result is there and its inputs may be reused. Sums are pairwise in rank order, ((r0
// + r1) + (r2 + r3)) + …, so their bits do not depend on timing or transport. A communicator is used by one thread at a
// time; different communicators of one rank may be used by different threads at once. No call allocates.
//
// Errors: InvariantError, on every member of the group, when its members call different operations or sizes in the same
// place; it names the group, two ranks and both calls. Aborted when another rank failed: its error is the one to show.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "tensor/dtype.h"

namespace shardpipe {

// Thrown by what waits for other ranks when one of them failed; the text says which and how.
class Aborted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Bytes that one rank sent, by kind, as the best known algorithms send them: an all-gather or reduce-scatter of b bytes
// over n ranks costs each b·(n-1)/n, an all-reduce both, a broadcast costs its root b·(n-1). Transports count by this,
// not by what they do.
struct WireBytes {
  uint64_t send = 0;
  uint64_t all_gather = 0;
  uint64_t reduce_scatter = 0;
  uint64_t all_reduce = 0;         // of floats or integers: gradients
  uint64_t scalar_all_reduce = 0;  // of doubles: losses, norms
  uint64_t broadcast = 0;
  uint64_t total() const { return send + all_gather + reduce_scatter + all_reduce + scalar_all_reduce + broadcast; }
  bool operator==(const WireBytes&) const = default;
};

// What one rank sends of `elements`, padded to a multiple of the group, in one all-gather or one reduce-scatter.
constexpr uint64_t sharded_wire_bytes(uint64_t elements, uint64_t ranks, uint64_t bytes_per_element) {
  return (elements + ranks - 1) / ranks * (ranks - 1) * bytes_per_element;
}

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // within the group: 0 … size() - 1
  virtual int size() const = 0;

  // Rendezvous: send returns when the receiver has the bytes. Both sides name the same number of bytes.
  virtual void send(std::span<const std::byte> bytes, int to) = 0;
  virtual void receive(std::span<std::byte> bytes, int from) = 0;

  // whole [size() · shard]: every rank's shard, in rank order, of elements of any type. The shard may be this rank's
  // own part of `whole`.
  virtual void all_gather(std::span<const std::byte> shard, std::span<std::byte> whole) = 0;
  // shard = (accumulate ? shard : 0) + this rank's part of the sum of all wholes [size() · shard]. The shard may be
  // this rank's own part of `whole` when it is overwritten.
  virtual void reduce_scatter(std::span<const float> whole, std::span<float> shard, bool accumulate) = 0;
  // out = (accumulate ? out : 0) + the sum of all `in`; the same size, and either the same memory or apart.
  virtual void all_reduce(std::span<const float> in, std::span<float> out, bool accumulate) = 0;
  // The same of terms that were rounded to be sent: the sums are fp32, and so is what an all-reduce sends of them.
  virtual void reduce_scatter(std::span<const BFloat16> whole, std::span<float> shard, bool accumulate) = 0;
  virtual void all_reduce(std::span<const BFloat16> in, std::span<float> out, bool accumulate) = 0;
  // The same of integers: exact, so that the order means nothing.
  virtual void reduce_scatter(std::span<const int64_t> whole, std::span<int64_t> shard, bool accumulate) = 0;
  virtual void all_reduce(std::span<const int64_t> in, std::span<int64_t> out, bool accumulate) = 0;
  virtual void all_reduce(std::span<double> values) = 0;  // in place: a few scalars
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual void barrier() = 0;

  const WireBytes& wire_bytes() const { return wire_bytes_; }  // since it was made; read by the thread that uses it

 protected:
  WireBytes wire_bytes_;
};

}  // namespace shardpipe
