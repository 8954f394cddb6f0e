// Replaces operator new in a test program, to count: nothing that a step runs may allocate. To be included in one file
// of a program.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace shardpipe {
inline std::atomic<uint64_t> allocations = 0;  // of all threads, since the program began
}

// Not inlined: the compiler would see malloc's memory go to delete, and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++shardpipe::allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
