// The queues of one rank: each stream is a thread of its own that runs what is put on it, in order; streams run side by
// side, and only wait() orders them. As CUDA's streams and events, on processors.
//
// Launching and waiting never allocate and never block. One thread launches; commands may not. Idle streams cost no
// processor time.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace shardpipe {

struct Command {
  void (*run)(void* context, uint64_t index) = nullptr;
  void* context = nullptr;  // must live until the command is done
  uint64_t index = 0;       // handed to `run`
};

class Streams {
 public:
  using OnFailure = std::function<void(std::exception_ptr)>;

  // One stream for each name (a thread's name: 15 characters count). `capacity` commands and waits fit on a stream
  // before they are run. `on_failure` is called once, by the thread that fails, to release what other commands may be
  // blocked in outside; it may not throw.
  Streams(std::span<const std::string> names, size_t capacity, OnFailure on_failure = {});
  ~Streams();  // abandons
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // Puts a command on a stream. Returns its number there, from 1 on. Throws the error of a command that failed, if one
  // did; InvariantError when the stream is full.
  uint64_t launch(size_t stream, Command);
  // What comes later on `stream` starts after command `number` of `other` is done. Same errors.
  void wait(size_t stream, size_t other, uint64_t number);

  // Waits until nothing runs and nothing is queued. Throws the first error of a command; the commands behind it, on all
  // streams, were dropped.
  void synchronize();

  // Drops what does not run yet and waits for what runs, so that what commands use may go away. Where there was
  // anything, that counts as a failure, so that nothing can hang here.
  void abandon() noexcept;

  // As if a command had failed with this error. Only the first failure counts.
  void fail(std::exception_ptr error) noexcept;

  uint64_t done(size_t stream) const;  // commands that have ended

 private:
  struct Entry {
    Command command;      // run == nullptr: a wait
    size_t other = 0;     // a wait: for this stream
    uint64_t number = 0;  // … to have done so many commands
  };
  struct Stream {
    std::string name;
    std::vector<Entry> ring;
    size_t first = 0, queued = 0;  // in the ring
    uint64_t launched = 0, done = 0;
    bool busy = false;            // a command runs
    size_t waits_for = SIZE_MAX;  // while blocked in a wait: on this stream
    uint64_t waits_number = 0;
    std::condition_variable wake;
    std::thread thread;
  };

  void serve(Stream&);
  void put(Stream&, const Entry&);
  bool idle() const;  // of all streams

  const OnFailure on_failure_;
  mutable std::mutex mutex_;  // guards all below; not held while a command runs
  std::vector<Stream> streams_;
  std::condition_variable all_idle_;
  std::exception_ptr error_;
  bool ending_ = false;
};

}  // namespace shardpipe
