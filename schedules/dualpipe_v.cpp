// DualPipeV (DeepSeek-AI, DualPipe, github.com/deepseek-ai/DualPipe; the cut-in-half form of DeepSeek-V3's DualPipe,
// arXiv:2412.19437, section 3.2.1): two chunks a rank in a V. In the steady state a forward of one chunk runs together
// with a whole backward of the other, so that the messages of each hide behind the arithmetic of the other.
//
//   rank r of p, in eight steps; F0, F1 and B0, B1 are the passes of its first and its last chunk:
//     1  2(p-1-r) x F0          4  m-2p+1+r x (F0 with B1), (F1 with B0)       7  p-1-r x W, I0
//     2  r+1 x F0, F1           5  p-1-r x B1, (F1 with B0)                    8  r+1 x W
//     3  p-1-r x I1, W1, F1     6  r+1 x B1, B0: from the middle on, I1 and I0
//
// Weight parts that steps 6 and 7 put off run in the order in which they were put off. The steps need 2p micro-batches:
// with fewer it is the schedule of 2p without those that are not there.
#include <algorithm>
#include <deque>

#include "schedules/v_shape.h"

namespace shardpipe {
namespace {

class Rank {
 public:
  Rank(uint16_t rank, const ScheduleRequest& request, std::vector<Cell>& cells)
      : rank_(rank), ranks_(request.ranks), micro_batches_(request.micro_batches), cells_(cells) {}

  void run() {
    const int p = ranks_, r = rank_, later = p - 1 - r;
    const int m = std::max<int>(micro_batches_, 2 * p);
    repeat(2 * later, [&](int) { forward(0); });
    repeat(r + 1, [&](int) { forward(0), forward(1); });
    repeat(later, [&](int) { backward_input(1), next_weight(), forward(1); });
    repeat(m - 2 * p + 1 + r, [&](int i) {
      if (i == 0 && r == p - 1)
        forward(0), backward(1);  // apart: the whole pipeline waits for this first backward
      else
        together([&] { forward(0), backward(1); });
      together([&] { forward(1), backward(0); });
    });
    repeat(later, [&](int) { backward(1), together([&] { forward(1), backward(0); }); });
    const int half = (r + 1) / 2;
    repeat(r + 1, [&](int i) {
      const bool first_is_split = i > half || (i == half && r % 2 == 1);
      first_is_split ? backward_input(1) : backward(1);
      i >= half ? backward_input(0) : backward(0);
    });
    repeat(later, [&](int) { next_weight(), backward_input(0); });
    repeat(r + 1, [&](int) { next_weight(); });
  }

 private:
  template <typename Step>
  static void repeat(int times, Step step) {
    for (int i = 0; i < times; ++i) step(i);
  }

  // chunk: 0, the rank's first, or 1, its last.
  void forward(int chunk) { add(Pass::Forward, chunk, forwards_[chunk]++); }
  void backward(int chunk) { add(Pass::Backward, chunk, backwards_[chunk]++); }
  void backward_input(int chunk) {
    put_off_.push_back({chunk, backwards_[chunk]});
    add(Pass::BackwardInput, chunk, backwards_[chunk]++);
  }
  void next_weight() {
    add(Pass::BackwardWeight, put_off_.front().chunk, put_off_.front().micro_batch);
    put_off_.pop_front();
  }
  template <typename Pair>
  void together(Pair pair) {
    const size_t before = cells_.size();
    pair();
    if (cells_.size() == before + 2) cells_[before].with_next = true;
  }
  void add(Pass pass, int chunk, uint16_t micro_batch) {
    if (micro_batch < micro_batches_)
      cells_.push_back({pass, v_chunk(Pass::Forward, chunk, rank_, ranks_), micro_batch});
  }

  struct PutOff {
    int chunk;
    uint16_t micro_batch;
  };
  uint16_t rank_, ranks_, micro_batches_;
  std::vector<Cell>& cells_;
  uint16_t forwards_[2] = {}, backwards_[2] = {};
  std::deque<PutOff> put_off_;
};

}  // namespace

Schedule dualpipe_v(const ScheduleRequest& request) {
  Schedule schedule = empty_v_schedule("dualpipe-v", request);
  for (uint16_t rank = 0; rank < request.ranks; ++rank) Rank(rank, request, schedule.by_rank[rank]).run();
  return schedule;
}

}  // namespace shardpipe
