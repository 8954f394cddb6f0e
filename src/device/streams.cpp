#include "device/streams.h"

#include <pthread.h>

#include <algorithm>

#include "base/error.h"

namespace shardpipe {

Streams::Streams(std::span<const std::string> names, size_t capacity, OnFailure on_failure)
    : on_failure_(std::move(on_failure)), streams_(names.size()) {
  for (size_t i = 0; i < names.size(); ++i) {
    streams_[i].name = names[i].substr(0, 15);
    streams_[i].ring.resize(capacity);
  }
  try {
    for (Stream& stream : streams_) stream.thread = std::thread([this, &stream] { serve(stream); });
  } catch (...) {  // no more threads: those that run must end before their streams go away
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
      for (Stream& stream : streams_) stream.wake.notify_one();
    }
    for (Stream& stream : streams_) {
      if (stream.thread.joinable()) stream.thread.join();
    }
    throw;
  }
}

Streams::~Streams() {
  abandon();
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
    for (Stream& stream : streams_) stream.wake.notify_one();
  }
  for (Stream& stream : streams_) stream.thread.join();
}

uint64_t Streams::launch(size_t stream, Command command) {
  const std::scoped_lock lock(mutex_);
  put(streams_.at(stream), {.command = command});
  return ++streams_[stream].launched;
}

void Streams::wait(size_t stream, size_t other, uint64_t number) {
  const std::scoped_lock lock(mutex_);
  if (streams_.at(other).done >= number) return;
  put(streams_.at(stream), {.command = {}, .other = other, .number = number});
}

void Streams::synchronize() {
  std::unique_lock lock(mutex_);
  all_idle_.wait(lock, [&] { return idle(); });
  if (error_) std::rethrow_exception(error_);
}

void Streams::abandon() noexcept {
  std::unique_lock lock(mutex_);
  if (idle()) return;
  lock.unlock();
  fail(std::make_exception_ptr(InvariantError("streams were ended with commands on them")));
  lock.lock();
  all_idle_.wait(lock, [&] { return idle(); });
}

void Streams::fail(std::exception_ptr error) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    if (error_) return;
    error_ = error;
    for (Stream& stream : streams_) {
      stream.queued = 0;
      stream.wake.notify_one();
    }
    if (idle()) all_idle_.notify_all();
  }
  if (on_failure_) on_failure_(std::move(error));
}

uint64_t Streams::done(size_t stream) const {
  const std::scoped_lock lock(mutex_);
  return streams_.at(stream).done;
}

void Streams::put(Stream& stream, const Entry& entry) {
  if (error_) std::rethrow_exception(error_);
  if (stream.queued == stream.ring.size()) {
    throw InvariantError(
        fmt::format("stream '{}' is full: it holds {} commands and waits", stream.name, stream.queued));
  }
  stream.ring[(stream.first + stream.queued) % stream.ring.size()] = entry;
  ++stream.queued;
  if (stream.queued == 1) stream.wake.notify_one();
}

bool Streams::idle() const {
  return std::ranges::all_of(streams_, [](const Stream& stream) { return stream.queued == 0 && !stream.busy; });
}

// The life of a stream's thread.
void Streams::serve(Stream& self) {
  pthread_setname_np(pthread_self(), self.name.c_str());
  std::unique_lock lock(mutex_);
  for (;;) {
    self.wake.wait(lock, [&] { return self.queued > 0 || ending_; });
    if (self.queued == 0) return;
    const Entry entry = self.ring[self.first];  // stays queued while it waits, so that the stream is not idle

    if (entry.command.run == nullptr) {
      self.waits_for = entry.other;
      self.waits_number = entry.number;
      self.wake.wait(lock, [&] { return streams_[entry.other].done >= entry.number || error_; });
      self.waits_for = SIZE_MAX;
    }
    if (self.queued == 0) continue;  // dropped by a failure
    self.first = (self.first + 1) % self.ring.size();
    --self.queued;

    if (entry.command.run != nullptr) {
      self.busy = true;
      lock.unlock();
      try {
        entry.command.run(entry.command.context, entry.command.index);
      } catch (...) {
        fail(std::current_exception());
      }
      lock.lock();
      self.busy = false;
      ++self.done;
      for (Stream& waiting : streams_) {
        const bool for_this = waiting.waits_for == static_cast<size_t>(&self - streams_.data());
        if (for_this && waiting.waits_number <= self.done) waiting.wake.notify_one();
      }
    }
    if (idle()) all_idle_.notify_all();
  }
}

}  // namespace shardpipe
