// A transfer is cut into requests of a mebibyte, of which several are under way at once: a disk is fast only when it
// has more than one thing to do (Axboe, "Efficient IO with io_uring", 2019).
#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "device/block_queue.h"

namespace shardpipe {
namespace {

constexpr unsigned depth = 16;
constexpr uint64_t request_bytes = 1 << 20;

class UringQueue final : public BlockQueue {
 public:
  UringQueue() {
    made_ = io_uring_queue_init(depth, &ring_, 0) == 0;
    if (!made_) return;  // an old system, or one that forbids it, as containers do
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    usable_ = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) &&
              io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
  }
  ~UringQueue() override {
    if (made_) io_uring_queue_exit(&ring_);
  }
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;
  bool usable() const { return usable_; }

  int move(int file, Direction direction, uint64_t offset, std::byte* memory, uint64_t bytes) override {
    if (broken_ != 0) return broken_;
    const Transfer transfer{file, direction, offset, memory};
    uint64_t next = 0;
    unsigned under_way = 0;
    int error = 0;
    for (unsigned slot = 0; slot < depth && next < bytes; ++slot) start(transfer, slot, next, bytes, under_way);
    while (under_way > 0) {
      const int submitted = io_uring_submit_and_wait(&ring_, 1);
      io_uring_cqe* done = nullptr;
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) {
        // The ring fails, and keeps what it did not take: no later transfer may use it. What it took must end first,
        // since that uses the memory.
        broken_ = -submitted;
        under_way -= io_uring_sq_ready(&ring_);
        for (; under_way > 0 && io_uring_wait_cqe(&ring_, &done) == 0; --under_way) io_uring_cqe_seen(&ring_, done);
        return broken_;
      }
      while (io_uring_peek_cqe(&ring_, &done) == 0) {
        const auto slot = static_cast<unsigned>(io_uring_cqe_get_data64(done));
        const int result = done->res;
        io_uring_cqe_seen(&ring_, done);
        --under_way;
        Request& request = requests_[slot];
        const bool again = result == -EINTR || result == -EAGAIN;
        if (result == 0) error = ENODATA;
        if (result < 0 && !again) error = -result;
        if (error != 0) continue;  // nothing new: what is under way ends
        if (result > 0) request.begin += static_cast<uint64_t>(result);
        if (request.begin < request.end)
          submit(transfer, slot, under_way);
        else if (next < bytes)
          start(transfer, slot, next, bytes, under_way);
      }
    }
    return error;
  }

 private:
  struct Transfer {
    int file;
    Direction direction;
    uint64_t offset;
    std::byte* memory;
  };
  struct Request {
    uint64_t begin = 0, end = 0;  // in the transfer
  };

  void start(const Transfer& transfer, unsigned slot, uint64_t& next, uint64_t bytes, unsigned& under_way) {
    requests_[slot] = {next, std::min(next + request_bytes, bytes)};
    next = requests_[slot].end;
    submit(transfer, slot, under_way);
  }
  // A slot has one request at a time, so the ring always has room for it.
  void submit(const Transfer& transfer, unsigned slot, unsigned& under_way) {
    const Request& request = requests_[slot];
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    const auto bytes = static_cast<unsigned>(request.end - request.begin);
    if (transfer.direction == Direction::Read)
      io_uring_prep_read(entry, transfer.file, transfer.memory + request.begin, bytes, transfer.offset + request.begin);
    else
      io_uring_prep_write(entry, transfer.file, transfer.memory + request.begin, bytes,
                          transfer.offset + request.begin);
    io_uring_sqe_set_data64(entry, slot);
    ++under_way;
  }

  io_uring ring_{};
  bool made_ = false, usable_ = false;
  int broken_ = 0;
  std::array<Request, depth> requests_{};
};

}  // namespace

std::unique_ptr<BlockQueue> make_uring_queue() {
  auto queue = std::make_unique<UringQueue>();
  if (!queue->usable()) return nullptr;
  return queue;
}

}  // namespace shardpipe
