# io_uring, by which several requests to a disk are under way at once, where liburing is there; else one after the
# other. One source file is compiled for each.
find_path(URING_INCLUDE_DIR liburing.h)
find_library(URING_LIBRARY uring)
if(URING_INCLUDE_DIR AND URING_LIBRARY)
  set(SHARDPIPE_URING_LIBRARIES ${URING_LIBRARY})
  set(SHARDPIPE_URING_OTHER_SOURCE block_queue_no_uring.cpp)
  message(STATUS "Offload to files: io_uring")
else()
  set(SHARDPIPE_URING_LIBRARIES)
  set(SHARDPIPE_URING_OTHER_SOURCE block_queue_uring.cpp)
  message(STATUS "Offload to files: plain reads and writes (liburing was not found)")
endif()
