#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "device/block_queue.h"
#include "device/store.h"

namespace shardpipe {
namespace {

constexpr uint64_t block = Store::alignment;
constexpr uint64_t bounce_bytes = 1 << 20;

InputError wrong_directory(const std::filesystem::path& directory, std::string_view found) {
  return InputError(
      fmt::format("--offload-to nvme:{}: found {}; allowed: a folder on a disk, in which files can be made",
                  directory.string(), found));
}

// An open file that has no name any more.
class UnnamedFile {
 public:
  explicit UnnamedFile(const std::filesystem::path& directory) {
    std::string name = (directory / "shardpipe-offload-XXXXXX").string();
    descriptor_ = mkostemp(name.data(), O_CLOEXEC);
    if (descriptor_ < 0) {
      const int error = errno;
      struct stat status {};
      if (error == ENOENT) throw wrong_directory(directory, "no such folder");
      if (stat(directory.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) throw wrong_directory(directory, "a file");
      throw wrong_directory(directory, std::strerror(error));
    }
    unlink(name.c_str());
  }
  ~UnnamedFile() { close(descriptor_); }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;
  int descriptor() const { return descriptor_; }

  // Around the page cache, if the file system does that with our blocks. The first block must be allocated; it is 0
  // afterwards.
  bool go_direct() const {
    const int flags = fcntl(descriptor_, F_GETFL);
    if (fcntl(descriptor_, F_SETFL, flags | O_DIRECT) != 0) return false;
    alignas(block) std::byte zeros[block]{};
    if (pwrite(descriptor_, zeros, block, 0) == static_cast<ssize_t>(block)) return true;
    fcntl(descriptor_, F_SETFL, flags);
    return false;
  }

 private:
  int descriptor_ = -1;
};

uint64_t free_bytes_in(const std::filesystem::path& directory) {
  struct statvfs status {};
  const bool counted = statvfs(directory.c_str(), &status) == 0 && status.f_blocks > 0;
  return counted ? uint64_t{status.f_bavail} * status.f_frsize : StoreDirectory::uncounted;
}

std::unique_ptr<BlockQueue> make_queue(bool io_uring) {
  std::unique_ptr<BlockQueue> queue = io_uring ? make_uring_queue() : nullptr;
  return queue == nullptr ? make_plain_queue() : std::move(queue);
}

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

class FileStore final : public Store {
 public:
  FileStore(std::filesystem::path directory, uint64_t bytes, FileIo allowed)
      : Store(bytes), directory_(std::move(directory)), file_(directory_) {
    if (bytes > 0) allocate();
    if (bytes > 0 && allowed.direct) file_.go_direct();
    for (Channel* channel : {&reads_, &writes_}) {
      channel->queue = make_queue(allowed.io_uring);
      channel->bounce.reset(static_cast<std::byte*>(std::aligned_alloc(block, bounce_bytes)));
      if (channel->bounce == nullptr) throw InputError("the system has no memory for reading and writing blocks");
      std::memset(channel->bounce.get(), 0, bounce_bytes);
    }
  }

 private:
  // One thread's way to the file.
  struct Channel {
    std::unique_ptr<BlockQueue> queue;
    std::unique_ptr<std::byte, FreeMemory> bounce;  // for what is no whole block, or does not lie on one
  };

  // All of the file, on the disk: a later write cannot find it full.
  void allocate() {
    const uint64_t whole = (size() + block - 1) / block * block;
    const auto no_room = [&](int error) {
      // Some file systems keep what was allocated before the disk was full.
      (void)ftruncate(file_.descriptor(), 0);
      const uint64_t free = free_bytes_in(directory_);
      return InputError(fmt::format(
          "--offload-to nvme:{}: this rank's file of {} bytes ({:.1f} GiB) finds no room ({}); {} bytes are free there",
          directory_.string(), whole, static_cast<double>(whole) / (1 << 30), std::strerror(error),
          free == StoreDirectory::uncounted ? "an unknown number of" : fmt::format("{}", free)));
    };
    // Else the system would end the process.
    struct rlimit limit {};
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && whole > limit.rlim_cur)
      throw no_room(EFBIG);
    if (whole > static_cast<uint64_t>(INT64_MAX)) throw no_room(EFBIG);
    int error = 0;
    do error = fallocate(file_.descriptor(), 0, 0, static_cast<off_t>(whole)) == 0 ? 0 : errno;
    while (error == EINTR);
    // A file system that cannot is made to by writing; what it lacks is known in advance where it can be.
    if (error == EOPNOTSUPP) error = whole > free_bytes_in(directory_) ? ENOSPC : write_zeros(whole);
    if (error != 0) throw no_room(error);
  }
  int write_zeros(uint64_t whole) const {
    const std::unique_ptr<BlockQueue> queue = make_plain_queue();
    std::string zeros(bounce_bytes, '\0');
    int error = 0;
    for (uint64_t done = 0; done < whole && error == 0; done += zeros.size())
      error = queue->move(file_.descriptor(), Direction::Write, done, reinterpret_cast<std::byte*>(zeros.data()),
                          std::min<uint64_t>(zeros.size(), whole - done));
    return error;
  }

  void do_read(uint64_t offset, std::span<std::byte> to) override {
    const uint64_t directly = whole_blocks(to);
    move(reads_, Direction::Read, offset, to.data(), directly);
    for (uint64_t done = directly; done < to.size();) {
      const uint64_t bytes = std::min(bounce_bytes, to.size() - done);
      move(reads_, Direction::Read, offset + done, reads_.bounce.get(), (bytes + block - 1) / block * block);
      std::memcpy(to.data() + done, reads_.bounce.get(), bytes);
      done += bytes;
    }
  }
  void do_write(uint64_t offset, std::span<const std::byte> from) override {
    const uint64_t directly = whole_blocks(from);
    // Writing only reads the memory.
    move(writes_, Direction::Write, offset, const_cast<std::byte*>(from.data()), directly);
    for (uint64_t done = directly; done < from.size();) {
      const uint64_t bytes = std::min(bounce_bytes, from.size() - done);
      std::memcpy(writes_.bounce.get(), from.data() + done, bytes);
      move(writes_, Direction::Write, offset + done, writes_.bounce.get(), (bytes + block - 1) / block * block);
      done += bytes;
    }
  }
  // Bytes that can be moved without a copy.
  static uint64_t whole_blocks(std::span<const std::byte> memory) {
    return reinterpret_cast<uintptr_t>(memory.data()) % block == 0 ? memory.size() / block * block : 0;
  }

  void move(Channel& channel, Direction direction, uint64_t offset, std::byte* memory, uint64_t bytes) {
    if (bytes == 0) return;
    const int error = channel.queue->move(file_.descriptor(), direction, offset, memory, bytes);
    if (error != 0)
      throw std::runtime_error(
          fmt::format("{} {} bytes at {} of the offload file in {}: {}",
                      direction == Direction::Read ? "reading" : "writing", bytes, offset, directory_.string(),
                      error == ENODATA ? "the file is shorter than it was made" : std::strerror(error)));
  }

  std::filesystem::path directory_;
  UnnamedFile file_;
  Channel reads_, writes_;
};

}  // namespace

std::unique_ptr<Store> make_file_store(const std::filesystem::path& directory, uint64_t bytes, FileIo allowed) {
  return std::make_unique<FileStore>(directory, bytes, allowed);
}

StoreDirectory look_at_store_directory(const std::filesystem::path& directory) {
  const UnnamedFile file(directory);
  StoreDirectory found;
  struct statfs status {};
  if (fstatfs(file.descriptor(), &status) == 0)
    found.in_memory = status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC;
  found.free_bytes = free_bytes_in(directory);
  found.direct = file.go_direct();
  found.io_uring = make_uring_queue() != nullptr;
  return found;
}

}  // namespace shardpipe
