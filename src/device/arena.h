// One block of memory for all that a rank's step uses: mapped once, on huge pages where the system has them, touched
// once, reused in every step. The first touch of a page can cost far more than any later use of it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace shardpipe {

class Arena {
 public:
  static constexpr size_t alignment = size_t{2} << 20;  // of the first byte: a huge page

  // Maps and touches `bytes` (0 is none) on the calling thread, so that the pages are near the processor that will use
  // them. All bytes are 0. InputError, with the number of bytes, when the system does not have them.
  explicit Arena(uint64_t bytes);
  ~Arena();
  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;

  std::span<std::byte> memory() const { return {data_, size_}; }
  uint64_t size() const { return size_; }  // as asked for
  std::byte* at(uint64_t offset) const { return data_ + offset; }

 private:
  void release() noexcept;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace shardpipe
