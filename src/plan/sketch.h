// A layout priced without its program, in microseconds where the program takes up to seconds: which of many layouts are
// worth compiling. It orders and it prunes; no figure of it is ever printed.
#pragma once
#include <map>
#include <tuple>

#include "layout/layout.h"
#include "plan/hardware.h"

namespace shardpipe {

struct Sketch {
  double seconds = 0;  // of a step
  double bytes = 0;    // of the rank that holds the most
};

class Sketcher {
 public:
  // Both outlive the sketcher.
  Sketcher(const Model& model, const Cluster& cluster, uint64_t optimizer_states_per_element)
      : model_(model), cluster_(cluster), states_(optimizer_states_per_element) {}

  // Of a layout that breaks no rule.
  Sketch sketch(const Layout&);

 private:
  // The shape of a schedule, whatever a chunk takes.
  struct Shape {
    double micro_batches = 0;  // it was timed with
    double length = 0;         // in work of one micro-batch on one rank
    std::vector<uint16_t> rank_of_chunk;
    // Of each rank, the most chunks' micro-batches that are at once between their forward and the end of their
    // backward, and between the two parts of a split backward.
    std::vector<int> in_flight, deferred;
  };
  struct Block {
    BlockSeconds seconds{};
    double saved = 0, recomputed = 0, between = 0, workspace = 0;  // bytes
    double elements = 0, tied = 0;  // of its own parameters, and of those that another block has too
  };
  const Shape& shape_of(const Layout&, double recompute_share);
  const std::vector<Block>& blocks_of(const Layout&);

  const Model& model_;
  const Cluster& cluster_;
  uint64_t states_;
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t, int>, Shape> shapes_;
  std::map<std::tuple<int64_t, std::string, int>, std::vector<Block>> blocks_;
  std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> stages_;
};

}  // namespace shardpipe
