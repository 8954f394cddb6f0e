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
inline void* allocate_counted(size_t bytes, size_t alignment, const void* caller) {
  ++(in_onednn(caller) ? library_allocations : allocations);
  void* memory = alignment == 0 ? std::malloc(bytes)
                                : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace shardpipe

// Not inlined: the compiler would see malloc's memory go to delete, and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  return shardpipe::allocate_counted(bytes, 0, __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return shardpipe::allocate_counted(bytes, static_cast<size_t>(alignment), __builtin_return_address(0));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
