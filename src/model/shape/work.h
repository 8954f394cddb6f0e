// What the arithmetic of a block is made of, for one micro-batch: matrix products, and bytes that pass between memory
// and processor around them. The one description of it: stages are balanced, utilisation is counted and layouts are
// priced by these numbers.
#pragma once
#include <vector>

#include "model/shape/model.h"

namespace shardpipe {

// `count` products [rows, depth] × [depth, columns]; 2 · rows · columns · depth operations each. The count of an
// attention is half of what its shape says, for the causal half.
struct Product {
  double count = 1;
  int64_t rows = 0, columns = 0, depth = 0;
  double flops_of_one() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth);
  }
  double flops() const { return count * flops_of_one(); }
  bool operator==(const Product&) const = default;
};

struct Work {
  std::vector<Product> products;
  double bytes = 0;  // read and written by all that is no product: norms, activation functions, sums, softmax, loss.
                     // Attention that never stores its scores is taken for products alone (Dao et al.,
                     // arXiv:2205.14135)
  double flops() const;
};

Work forward_work(const Model&, const Block&, MicroBatchShape);
// Attention's scores are made again: five products where the forward has two.
Work backward_input_work(const Model&, const Block&, MicroBatchShape);
Work backward_weight_work(const Model&, const Block&, MicroBatchShape);
Work recompute_work(const Model&, const Block&, MicroBatchShape, Recompute);

}  // namespace shardpipe
