// Replaces operator new in a test program, to count: nothing that a step runs may allocate. To be included in one file
// of a program. What oneDNN allocates inside a call (and frees before it returns) is its own, and is counted apart.
#pragma once
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace shardpipe {
inline std::atomic<uint64_t> allocations = 0;          // of all threads, since the program began
inline std::atomic<uint64_t> library_allocations = 0;  // those of oneDNN

inline bool in_onednn(const void* code) {
  Dl_info info{};
  return dladdr(code, &info) != 0 && info.dli_fname != nullptr && std::strstr(info.dli_fname, "libdnnl") != nullptr;
}
inline void* allocate_counted_or_null(size_t bytes, size_t alignment, const void* caller) noexcept {
  ++(in_onednn(caller) ? library_allocations : allocations);
  if (alignment == 0) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
inline void* allocate_counted(size_t bytes, size_t alignment, const void* caller) {
  if (void* memory = allocate_counted_or_null(bytes, alignment, caller)) return memory;
  throw std::bad_alloc();
}
}  // namespace shardpipe

// Not inlined: the compiler would see malloc's memory go to delete, and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  return shardpipe::allocate_counted(bytes, 0, __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return shardpipe::allocate_counted(bytes, static_cast<size_t>(alignment), __builtin_return_address(0));
}
// std::stable_sort's buffer. All forms are replaced together: memory must not cross from one allocator to another.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return shardpipe::allocate_counted_or_null(bytes, 0, __builtin_return_address(0));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
