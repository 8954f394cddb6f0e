// Every cell of ZeRO stage × schedule × offload × precision × recompute, on the same model, ranks and batch: does it
// run, and with which bits.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "train/run_config.h"

namespace shardpipe {

struct MatrixAxes {
  std::vector<int> zero{0, 1, 2, 3};
  std::vector<std::string> schedules;  // by default all that there are
  std::vector<std::string> offloads{"none", "optimizer", "params", "activations", "optimizer,params,activations"};
  std::vector<DType> precisions{DType::Float32, DType::BFloat16, DType::Float16};
  std::vector<std::string> recomputes{"none", "selective", "full", "every:2"};
  bool reduce_every_follows_zero = true;  // else the base's

  MatrixAxes();
  size_t cells() const {
    return zero.size() * schedules.size() * offloads.size() * precisions.size() * recomputes.size();
  }
};

struct MatrixCell {
  Layout layout;
  std::string refused;  // why it does not run; empty: it does
  std::string digest;   // of the parameters after its steps, where it was trained
};

// The layout of each cell: the base's but for the axes and what follows from them.
std::vector<Layout> matrix_layouts(const Layout& base, const MatrixAxes&);

// A cell runs if it breaks no rule, is compiled and checked, and keeps to the memory limit; `train`: and if it has done
// base.steps steps on tokens of the seed. A program that check() refuses is a fault of ours, and refused too.
MatrixCell matrix_cell(const RunConfig& base, const Layout&, bool train);

// All that decides bits among the cells of a matrix: "fp32, reduced every step".
std::string bits_of_cell(const Layout&);

// Of the cells that run, the one with the fewest other values; nullptr where none runs.
const MatrixCell* nearest_that_runs(const std::vector<MatrixCell>&, const MatrixCell&);

// Of this cell's five axes those in which it differs from another, as flags: "--schedule 1f1b --zero 3".
std::string flags_of_difference(const Layout& from, const Layout& to);

// Prints a row a schedule, a column a ZeRO stage, how many cells run, and each reason why some do not. True where all
// run and, trained, all of one precision and cadence have one digest.
bool matrix(const RunConfig& base, const MatrixAxes&, bool train);

}  // namespace shardpipe
