#include "plan/hardware.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/nearest_name.h"

namespace shardpipe {
namespace {

// Shares of an A100's 312 TFLOP/s by the size of the product: the shape is Calculon's system file
// (calculon-ai/calculon, systems/a100_80g.json), which is what a product reaches alone. Between its steps the share
// grows with log(flops).
std::vector<Efficiency> products_of_a100(double reached) {
  return {{0.25e9, 0.1 * reached}, {1e9, 0.6 * reached}, {16e9, 0.9 * reached}, {128e9, 0.97 * reached}};
}

// A device that is `times` as fast needs products that are as much larger to be as busy: an assumption, where nobody
// published a curve.
std::vector<Efficiency> scaled(std::vector<Efficiency> products, double times) {
  for (Efficiency& product : products) product.flops *= times;
  return products;
}

constexpr double reached_of_nvlink = 0.65, nvlink_seconds = 10e-6;   // the same file
constexpr double reached_of_network = 0.9, network_seconds = 20e-6;  // the same file
// Of that curve, and of the memory by the bytes that work.h counts: what published runs reach, fitted in
// docs/published.md (tests/plan/published/fitted.csv: Megatron-LM on A100s, llm-foundry on H100s). A run moves more
// bytes than are counted.
constexpr double products_on_a100 = 0.68, memory_on_a100 = 0.71;
constexpr double products_on_h100 = 0.68, memory_on_h100 = 0.17;
constexpr double reached_of_host = 0.8, host_seconds = 10e-6;  // assumed

BytesCost at(double bytes_per_second, double reached, double seconds) {
  return {seconds, 1 / (bytes_per_second * reached)};
}

std::vector<Device> make_presets() {
  const Device a100{
      .name = "a100-80g",
      .peak_flops = 312e12,
      .peak_flops_fp32 = 19.5e12,
      .products = products_of_a100(products_on_a100),
      .memory_bytes = 80'000'000'000,
      .memory_bytes_per_second = 2039e9 * memory_on_a100,
      .link = at(300e9, reached_of_nvlink, nvlink_seconds),
      .host = at(32e9, reached_of_host, host_seconds),
      .network = "ib-200",
      .source = "A100 SXM: NVIDIA's data sheet; shares that are reached: Calculon, and fitted to published runs"};
  Device a100_40 = a100;
  a100_40.name = "a100-40g";
  a100_40.memory_bytes = 40'000'000'000;
  a100_40.memory_bytes_per_second = 1555e9 * memory_on_a100;
  const Device h100{
      .name = "h100",
      .peak_flops = 989e12,
      .peak_flops_fp32 = 66.9e12,
      .products = scaled(products_of_a100(products_on_h100), 989.0 / 312),
      .memory_bytes = 80'000'000'000,
      .memory_bytes_per_second = 3350e9 * memory_on_h100,
      .link = at(450e9, reached_of_nvlink, nvlink_seconds),
      .host = at(64e9, reached_of_host, host_seconds),
      .network = "ib-400",
      .source = "H100 SXM: NVIDIA's data sheet; shares that are reached: Calculon, and fitted to published runs"};
  Device h200 = h100;
  h200.name = "h200";
  h200.memory_bytes = 141'000'000'000;
  h200.memory_bytes_per_second = 4800e9 * memory_on_h100;
  h200.source = "H200 SXM: NVIDIA's data sheet; shares that are reached: Calculon, and fitted to published runs";
  return {a100_40, a100, h100, h200};
}

const std::vector<Device>& presets() {
  static const std::vector<Device> all = make_presets();
  return all;
}

// Of "ib-200" or "eth-100", where it is a number that makes sense.
std::optional<double> gigabits_of(std::string_view name) {
  if (!name.starts_with("ib-") && !name.starts_with("eth-")) return std::nullopt;
  const std::string_view number = name.substr(name.find('-') + 1);
  double gigabits = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), gigabits);
  const bool whole = error == std::errc() && end == number.data() + number.size();
  return whole && gigabits >= 0.1 && gigabits <= 1e5 ? std::optional(gigabits) : std::nullopt;
}

}  // namespace

double Device::share_of_peak(double flops, DType dtype) const {
  const std::vector<Efficiency>& curve = dtype == DType::Float32 && !products_fp32.empty() ? products_fp32 : products;
  const auto above = std::ranges::find_if(curve, [&](const Efficiency& point) { return point.flops > flops; });
  if (above == curve.begin()) return curve.front().share;
  if (above == curve.end()) return curve.back().share;
  const Efficiency &low = *(above - 1), &high = *above;
  return low.share + (high.share - low.share) * std::log(flops / low.flops) / std::log(high.flops / low.flops);
}

std::vector<std::string> device_presets() {
  std::vector<std::string> names;
  for (const Device& device : presets()) names.push_back(device.name);
  return names;
}

Device device_preset(std::string_view name) {
  const auto found = std::ranges::find(presets(), name, &Device::name);
  if (found == presets().end())
    throw InputError(fmt::format("found '{}', allowed: {}{}", name, fmt::join(device_presets(), ", "),
                                 did_you_mean(name, device_presets())));
  return *found;
}

Cluster cluster_of(Device device) {
  Cluster cluster{.device = std::move(device)};
  set_links(cluster, cluster.device.network);
  return cluster;
}

void set_links(Cluster& cluster, std::string_view names) {
  constexpr std::string_view allowed =
      "nvlink or pcie inside a node, ib-N or eth-N between nodes (N Gbit/s for each device, 0.1 to 100000), or one of "
      "each with a comma between";
  bool inside = false, between = false;
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const std::optional<double> gigabits = gigabits_of(name);
    bool& told = gigabits ? between : inside;
    if (told || (!gigabits && name != "nvlink" && name != "pcie"))
      throw InputError(fmt::format("found '{}', allowed: {}", name, allowed));
    told = true;
    if (gigabits) {
      cluster.between = at(*gigabits * 1e9 / 8, reached_of_network, network_seconds);
      cluster.between_name = name;
    } else if (name == "pcie") {
      cluster.device.link = cluster.device.host;
    }
  }
}

double seconds_on(const Device& device, const Work& work, DType dtype) {
  double seconds = work.bytes / device.memory_bytes_per_second;
  for (const Product& product : work.products)
    seconds += product.flops() / (device.peak(dtype) * device.share_of_peak(product.flops(), dtype));
  return seconds;
}

Cluster device_group(Cluster cluster, uint64_t tensor_parallel, bool sequence_parallel) {
  check_invariant(tensor_parallel > 0 && cluster.devices_in_node % tensor_parallel == 0,
                  "groups of {} do not fill nodes of {}", tensor_parallel, cluster.devices_in_node);
  const auto t = static_cast<double>(tensor_parallel);
  Device& device = cluster.device;
  device.group_sum = {tensor_parallel > 1 ? device.link.fixed_seconds : 0,
                      2 * (t - 1) / t * device.link.seconds_per_byte};
  device.whole_times = sequence_parallel ? 1 : t;
  device.peak_flops *= t;
  device.peak_flops_fp32 *= t;
  device.products = scaled(device.products, t);
  device.products_fp32 = scaled(device.products_fp32, t);
  device.memory_bytes *= tensor_parallel;
  device.memory_bytes_per_second *= t;
  for (BytesCost* cost : {&device.link, &device.host, &device.collective, &device.update, &cluster.between})
    cost->seconds_per_byte /= t;
  cluster.devices_in_node /= tensor_parallel;
  return cluster;
}

namespace {

// What a layer takes besides its work, where devices share its products or attention stores its scores.
BlockSeconds layer_extra(const Device& device, const Model& model, MicroBatchShape shape, Recompute recompute) {
  const auto activation = static_cast<double>(activation_bytes(model, shape));
  const double sums = 2 * device.group_sum.seconds(activation);
  const double again = activation * (device.whole_times - 1) / device.memory_bytes_per_second;
  const double scores = device.score_bytes * static_cast<double>(shape.tokens() * shape.sequence * model.config.heads) /
                        device.memory_bytes_per_second;
  // Of [tokens, hidden], as in work.cpp: two norms and two residuals; forwards 6, backwards 8 and 4.
  return {.forward = sums + 6 * again + scores,
          .backward_input = sums + 8 * again + 2 * scores,
          .backward_weight = 4 * again,
          .recompute = recompute == Recompute::Full        ? sums + 6 * again + scores
                       : recompute == Recompute::Selective ? scores
                                                           : 0};
}

}  // namespace

BlockSeconds block_seconds_on(const Device& device, const Model& model, const Block& block, MicroBatchShape shape,
                              Recompute recompute) {
  const auto seconds = [&](const Work& work) { return seconds_on(device, work, shape.dtype); };
  const BlockSeconds extra =
      block.kind == BlockKind::Layer ? layer_extra(device, model, shape, recompute) : BlockSeconds{};
  return {.forward = seconds(forward_work(model, block, shape)) + extra.forward,
          .backward_input = seconds(backward_input_work(model, block, shape)) + extra.backward_input,
          .backward_weight = seconds(backward_weight_work(model, block, shape)) + extra.backward_weight,
          .recompute = seconds(recompute_work(model, block, shape, recompute)) + extra.recompute};
}

CostModel costs_on(const Cluster& cluster, const StepShape& shape, const Program& program) {
  const Device& device = cluster.device;
  const auto dp = static_cast<uint64_t>(shape.layout.dp), replicate = static_cast<uint64_t>(shape.layout.replicate);
  CostModel costs{
      .blocks = {},
      .message = device.link,
      .collective = device.collective.seconds_per_byte > 0 ? device.collective : device.link,
      .update = device.update.seconds_per_byte > 0 ? device.update : BytesCost{0, 1 / device.memory_bytes_per_second},
      .store = device.host,
      .dp = dp,
      .replicate = replicate};
  costs.nodes = {.members = members_in_a_node(program, dp, replicate, cluster.devices_in_node),
                 .message = cluster.between,
                 .collective = cluster.between,
                 .per_node_seconds = cluster.per_node_seconds};
  const Model& model = *shape.model;
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const Block& block = model.blocks[b];
    // Layers are alike, all but what they make again.
    const bool like_the_last = b > 0 && block.kind == BlockKind::Layer && model.blocks[b - 1].kind == block.kind &&
                               shape.recompute[b] == shape.recompute[b - 1];
    costs.blocks.push_back(like_the_last
                               ? costs.blocks.back()
                               : block_seconds_on(device, model, block, shape.micro_batch, shape.recompute[b]));
  }
  return costs;
}

double model_flops_utilisation(const Cluster& cluster, const StepShape& shape, double step_seconds) {
  double flops = 0;
  for (const Block& block : shape.model->blocks) flops += 3 * forward_flops(*shape.model, block, shape.micro_batch);
  flops *= static_cast<double>(shape.layout.micro_batches() * shape.layout.dp);
  return flops /
         (step_seconds * static_cast<double>(shape.layout.ranks()) * cluster.device.peak(shape.micro_batch.dtype));
}

}  // namespace shardpipe
