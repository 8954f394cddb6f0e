# Compiler options that every target shares: warnings, sanitizers, and the arithmetic that makes bits repeatable.
add_library(shardpipe_options INTERFACE)
target_compile_options(shardpipe_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # GCC 12 sees an overlap in "text" + std::string (its bug 105651)
  -ffp-contract=off)  # a product and a sum are fused only where a kernel says so
# Vector kernels are compiled for a portable baseline, AVX2 and AVX-512; one binary chooses at run time.
target_compile_definitions(shardpipe_options INTERFACE "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL)")
if(SHARDPIPE_WERROR)
  target_compile_options(shardpipe_options INTERFACE -Werror)
endif()
if(SHARDPIPE_SANITIZE)
  target_compile_options(shardpipe_options INTERFACE -fsanitize=${SHARDPIPE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(shardpipe_options INTERFACE -fsanitize=${SHARDPIPE_SANITIZE})
  # GCC loses track of values in instrumented code: under a sanitizer it takes std::function inside std::regex for unset.
  target_compile_options(shardpipe_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  # Paths below the source tree are made relative, so that one clone's results serve another.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
endif()
