#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "cli/cli.h"

namespace {

// The C library keeps what is freed for the next call, and raises the size up to which it does to the largest that it
// has seen: to what oneDNN packs matrices into, several MB a thread that no memory plan knows. With fixed bounds large
// packings go back to the system after each product, for at most 1 % of the time (docs/memory.md); those of small
// products are reused.
void bound_what_the_heap_keeps() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 512 << 10);
  mallopt(M_TRIM_THRESHOLD, 2 << 20);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  bound_what_the_heap_keeps();
  return shardpipe::cli_main(argc, argv);
}
