// Where a rank keeps bytes that do not fit its arena: in host memory, or in one file of a directory. The file has no
// name (it is unlinked as soon as it is open), so ranks and runs that share a directory never meet and nothing is left
// behind, whatever ends the process; and all of it is allocated at the start, so that a full disk is found before the
// first step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace shardpipe {

class Store {
 public:
  static constexpr uint64_t alignment = 4096;  // of every offset; memory at a multiple of it is moved without a copy

  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // All of `to`, which lies at `offset` / all of `from`, to be there. Sizes are any. One thread may read while another
  // writes other bytes; several may not read, nor write, at once. Allocates nothing. A write takes its last block
  // whole: what the store held behind `from` there is lost. std::runtime_error that names the directory, the bytes,
  // their offset and the system's reason for an input/output error, or a file that has become shorter; nothing is
  // counted then.
  void read(uint64_t offset, std::span<std::byte> to);
  void write(uint64_t offset, std::span<const std::byte> from);

  uint64_t size() const { return size_; }
  uint64_t bytes_read() const { return bytes_read_; }  // by callers
  uint64_t bytes_written() const { return bytes_written_; }

 protected:
  explicit Store(uint64_t size) : size_(size) {}

 private:
  virtual void do_read(uint64_t offset, std::span<std::byte> to) = 0;
  virtual void do_write(uint64_t offset, std::span<const std::byte> from) = 0;
  uint64_t size_, bytes_read_ = 0, bytes_written_ = 0;
};

// All bytes are 0 at first. InputError, with the number of bytes, where the system does not have them.
std::unique_ptr<Store> make_host_store(uint64_t bytes);

// How a file is read and written. What is allowed is tried; without it, it works all the same, slower.
struct FileIo {
  bool direct = true;    // around the system's cache of pages
  bool io_uring = true;  // several requests under way at once
};
std::unique_ptr<Store> make_file_store(const std::filesystem::path& directory, uint64_t bytes, FileIo allowed = {});

// How a directory can be used, found by using it; nothing is left there. InputError that names it where it is missing,
// is none, or cannot be written.
struct StoreDirectory {
  bool direct = false, io_uring = false;
  bool in_memory = false;                            // a file there takes memory, not disk
  uint64_t free_bytes = 0;                           // for this user
  static constexpr uint64_t uncounted = UINT64_MAX;  // where the file system does not count its blocks
};
StoreDirectory look_at_store_directory(const std::filesystem::path&);

}  // namespace shardpipe
