// What devices and links can do, as figures with their sources: the presets of `shardpipe plan`, and what a calibration
// writes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/shape/work.h"
#include "program/compile.h"
#include "program/costs.h"

namespace shardpipe {

// What share of the peak a matrix product of so many operations reaches. A batch of products counts as one.
struct Efficiency {
  double flops = 0, share = 0;
  bool operator==(const Efficiency&) const = default;
};

struct Device {
  std::string name{};
  double peak_flops = 0;               // a second, of dense products of 16 bits with sums in fp32
  double peak_flops_fp32 = 0;          // and of fp32
  std::vector<Efficiency> products{};  // by ascending flops; straight lines over log(flops) between, constant outside
  std::vector<Efficiency> products_fp32{};  // the same of fp32, where it is not the same; empty: it is
  uint64_t memory_bytes = 0;
  double memory_bytes_per_second = 0;  // as reached, by what is no product
  BytesCost link{};                    // between two devices of a node, each way: as reached
  BytesCost host{};                    // between a device and its host's memory
  // Where they were measured on their own; of no rate: the link's, and the memory's speed.
  BytesCost collective{}, update{};
  // Of t devices that share the products of every layer (device_group): each passes the bytes of norms and residuals
  // itself, `whole_times` in all, and forwards and backwards end two sums of [tokens, hidden] each, which nothing
  // hides.
  double whole_times = 1;
  BytesCost group_sum{};
  // Where attention stores its scores: bytes that a forward passes for each of batch · heads · sequence²; backwards
  // twice.
  double score_bytes = 0;
  std::string network{};  // the usual link of each to other nodes, as set_links() reads it
  std::string source{};   // of all these figures

  double share_of_peak(double flops, DType dtype = DType::BFloat16) const;
  double peak(DType dtype) const { return dtype == DType::Float32 ? peak_flops_fp32 : peak_flops; }
};

struct Cluster {
  Device device;
  uint64_t devices_in_node = 8;
  BytesCost between{};          // from a device to another node, each way: as reached
  std::string between_name{};   // "ib-200"
  double per_node_seconds = 0;  // see Nodes
};

std::vector<std::string> device_presets();
Device device_preset(std::string_view name);  // InputError that lists the presets and the nearest name

// The preset's usual network, nodes of eight.
Cluster cluster_of(Device);
// Other links than the usual ones: "nvlink" or "pcie" inside a node, "ib-200" or "eth-100" between nodes (so many Gbit
// a second for each device), or one of each with a comma between. Empty: changes nothing. InputError with what is
// allowed.
void set_links(Cluster&, std::string_view names);

// `tensor_parallel` neighbours of a node as one device (Shoeybi et al., arXiv:1909.08053): each multiplies its part of
// every product of a layer, in which sums over a ring of the node's links take 2(t-1)/t of their bytes. Memory and its
// speed add up; with sequence parallelism (Korthikanti et al., arXiv:2205.05198) so do norms and residuals, which else
// each does alone. What goes to other nodes, or to another group, is divided among their links.
// Requires 1 <= tensor_parallel, a divisor of devices_in_node.
Cluster device_group(Cluster, uint64_t tensor_parallel, bool sequence_parallel);

// What a program's actions take there. Products at the share of the peak that one of their size reaches, the rest at
// the memory's speed.
CostModel costs_on(const Cluster&, const StepShape&, const Program&);
double seconds_on(const Device&, const Work&, DType);
BlockSeconds block_seconds_on(const Device&, const Model&, const Block&, MicroBatchShape, Recompute);

// Operations that a step's model needs (3 forwards; nothing that is computed again) over those that the devices could
// have done meanwhile.
double model_flops_utilisation(const Cluster&, const StepShape&, double step_seconds);

}  // namespace shardpipe
