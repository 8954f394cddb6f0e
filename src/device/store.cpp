#include "device/store.h"

#include <algorithm>

#include "base/error.h"
#include "device/arena.h"

namespace shardpipe {

void Store::read(uint64_t offset, std::span<std::byte> to) {
  check_invariant(offset % alignment == 0 && to.size() <= size_ && offset <= size_ - to.size(),
                  "a read of {} bytes at {} of a store of {}", to.size(), offset, size_);
  do_read(offset, to);
  bytes_read_ += to.size();
}

void Store::write(uint64_t offset, std::span<const std::byte> from) {
  check_invariant(offset % alignment == 0 && from.size() <= size_ && offset <= size_ - from.size(),
                  "a write of {} bytes at {} of a store of {}", from.size(), offset, size_);
  do_write(offset, from);
  bytes_written_ += from.size();
}

namespace {

class HostStore final : public Store {
 public:
  explicit HostStore(uint64_t bytes) : Store(bytes), memory_(bytes) {}

 private:
  void do_read(uint64_t offset, std::span<std::byte> to) override {
    std::ranges::copy(memory_.memory().subspan(offset, to.size()), to.begin());
  }
  void do_write(uint64_t offset, std::span<const std::byte> from) override {
    std::ranges::copy(from, memory_.memory().begin() + static_cast<std::ptrdiff_t>(offset));
  }
  Arena memory_;
};

}  // namespace

std::unique_ptr<Store> make_host_store(uint64_t bytes) { return std::make_unique<HostStore>(bytes); }

}  // namespace shardpipe
