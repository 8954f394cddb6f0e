# Compiler options that every target shares: warnings, sanitizers, and the arithmetic that makes bits repeatable.
add_library(shardpipe_options INTERFACE)
target_compile_options(shardpipe_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  -ffp-contract=off)  # a product and a sum are fused only where a kernel says so
if(SHARDPIPE_WERROR)
  target_compile_options(shardpipe_options INTERFACE -Werror)
endif()
if(SHARDPIPE_SANITIZE)
  target_compile_options(shardpipe_options INTERFACE -fsanitize=${SHARDPIPE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(shardpipe_options INTERFACE -fsanitize=${SHARDPIPE_SANITIZE})
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
