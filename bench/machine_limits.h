// What this machine can do at most, measured: the limits that benchmarks state their figures against.
#pragma once
#include <cstdint>
#include <string>

namespace shardpipe::bench {

// CPU seconds of the calling thread: other programs on the same cores do not count.
double thread_seconds();

// Single-thread fp32 operations a second (a fused multiply-add is two) of the widest vectors, from registers only.
double peak_flops_per_second();

// Bytes a second (read + written) of memcpy between two buffers that together have `footprint_bytes`: the limit of a
// kernel that streams as many bytes from the same level of cache.
double copy_bytes_per_second(uint64_t footprint_bytes);

// "AMD EPYC 7B13": as the kernel names it.
std::string processor_name();
// "AVX2": the vectors that the kernels and the peak use here.
std::string vector_instructions();

}  // namespace shardpipe::bench
