// Where the members of one group meet, when ranks are threads of one process: each says what it calls and where its
// memory is; once all who take part are there, they read and write each other's memory directly.
//
// Nothing here moves data but a send. A member whose memory others may be using is `Meeting` and cannot leave, not even
// when the job is aborted, until they are done: that takes a bounded time, since all of them are there.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace shardpipe::local {

enum class Operation : uint8_t {
  Barrier,
  Send,
  Receive,
  AllGather,
  ReduceScatter,
  AllReduce,
  ScalarAllReduce,
  Broadcast
};

enum class Terms : uint8_t { Floats, BFloat16s, Integers };  // of a sum

struct Call {
  Operation operation = Operation::Barrier;
  uint64_t count = 0;           // elements: of the whole, for sharded collectives
  int peer = -1;                // send: to; receive: from; broadcast: root
  bool accumulate = false;      // the members agree on this as well
  Terms terms = Terms::Floats;  // and on this
  const void* in = nullptr;
  void* out = nullptr;
};
const char* plural_of(Terms);        // "floats"
std::string to_string(const Call&);  // "all_gather of 24 floats", "send of 16 bytes to rank 1"

class Hall {
 public:
  Hall(std::string name, std::vector<int> world_ranks);
  const std::string& name() const { return name_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  // A collective: returns when all members have called it, with their calls, which stay valid until part(). A barrier
  // needs no part().
  std::span<const Call> meet(int rank, const Call&);
  void part(int rank);  // returns when all members have called it

  // A send or a receive: returns when the receiver has the bytes.
  void exchange(int rank, const Call&);

  // Every member that waits here, or comes here later, throws Aborted with this text.
  void abort(const std::string& reason);

 private:
  enum class Phase : uint8_t { Away, Waiting, Meeting };
  struct Member {
    Phase phase = Phase::Away;
    std::condition_variable wake;
  };

  void arrive(std::unique_lock<std::mutex>&, int rank, const Call&);
  void wait_while_waiting(std::unique_lock<std::mutex>&, int rank);
  void refuse_conflicts(int rank);
  void set_broken(std::string text, bool aborted);
  [[noreturn]] void throw_broken() const;

  const std::string name_;
  const std::vector<int> world_ranks_;

  std::mutex mutex_;  // guards all below; never held while bytes are copied
  std::vector<Call> calls_;
  std::vector<Member> members_;
  size_t arrived_ = 0, parted_ = 0;  // in the collective that is being met
  std::string broken_;               // not empty: nobody can meet here any more, and why
  bool aborted_ = false;             // broken from outside, not by a conflict of calls
};

}  // namespace shardpipe::local
