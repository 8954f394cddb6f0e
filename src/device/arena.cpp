#include "device/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"

namespace shardpipe {
namespace {

InputError no_memory(uint64_t bytes, const char* reason) {
  return InputError(fmt::format("this rank's memory of {} bytes ({:.1f} GiB) cannot be had from the system: {}", bytes,
                                static_cast<double>(bytes) / static_cast<double>(uint64_t{1} << 30), reason));
}

}  // namespace

Arena::Arena(uint64_t bytes) {
  if (bytes == 0) return;
  if (bytes > std::numeric_limits<size_t>::max() - 2 * alignment) throw no_memory(bytes, "more than an address space");
  const size_t whole_pages = (bytes + alignment - 1) / alignment * alignment;
  mapped_ = whole_pages + alignment;  // room to begin at a multiple of the alignment
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw no_memory(bytes, std::strerror(errno));
  }
  const size_t misplaced = reinterpret_cast<uintptr_t>(mapping_) % alignment;
  data_ = static_cast<std::byte*>(mapping_) + (misplaced == 0 ? 0 : alignment - misplaced);
  size_ = bytes;
  // Advice: a kernel without huge pages refuses it, and the arena works all the same.
  (void)madvise(data_, whole_pages, MADV_HUGEPAGE);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t offset = 0; offset < size_; offset += page)
    *const_cast<volatile std::byte*>(data_ + offset) = std::byte{0};
}

Arena::~Arena() { release(); }

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  release();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  mapping_ = std::exchange(other.mapping_, nullptr);
  mapped_ = std::exchange(other.mapped_, 0);
  return *this;
}

void Arena::release() noexcept {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

}  // namespace shardpipe
