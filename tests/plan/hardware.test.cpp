#include "plan/hardware.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace shardpipe {
namespace {

using testing::DoubleEq;
using testing::HasSubstr;

// bf16 and fp32 TFLOP/s, bytes, bytes/s of memory and of NVLink each way: NVIDIA's data sheets.
TEST(DevicePresets, HaveTheFiguresOfTheDataSheets) {
  struct Expected {
    const char* name;
    double peak, peak_fp32, memory, memory_rate, link_rate;
  };
  for (const Expected& expected : {Expected{"a100-40g", 312e12, 19.5e12, 40e9, 1555e9, 300e9},
                                   {"a100-80g", 312e12, 19.5e12, 80e9, 2039e9, 300e9},
                                   {"h100", 989e12, 66.9e12, 80e9, 3350e9, 450e9},
                                   {"h200", 989e12, 66.9e12, 141e9, 4800e9, 450e9}}) {
    const Device device = device_preset(expected.name);
    EXPECT_EQ(device.peak(DType::BFloat16), expected.peak);
    EXPECT_EQ(device.peak(DType::Float32), expected.peak_fp32);
    EXPECT_EQ(static_cast<double>(device.memory_bytes), expected.memory);
    EXPECT_LE(device.memory_bytes_per_second, expected.memory_rate) << "what is reached is at most what there is";
    EXPECT_GE(device.memory_bytes_per_second, expected.memory_rate / 8) << "by the bytes that work.h counts";
    EXPECT_GE(device.link.seconds_per_byte, 1 / expected.link_rate);
    EXPECT_LE(device.link.seconds_per_byte, 2 / expected.link_rate);
    EXPECT_FALSE(device.source.empty());
  }
  EXPECT_EQ(device_presets().size(), 4u);
}

TEST(DevicePresets, AnUnknownNameIsRefusedWithTheNearest) {
  try {
    device_preset("h10");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("found 'h10', allowed: a100-40g, a100-80g, h100, h200 (did you mean 'h100'?)"));
  }
}

TEST(ShareOfPeak, GrowsWithTheProductAndIsNeverAboveOne) {
  for (const std::string& name : device_presets()) {
    const Device device = device_preset(name);
    for (const Efficiency& point : device.products)
      EXPECT_THAT(device.share_of_peak(point.flops), DoubleEq(point.share)) << "through its points";
    double before = 0;
    for (double flops = 1; flops < 1e15; flops *= 1.1) {
      const double share = device.share_of_peak(flops);
      EXPECT_GE(share, before);
      EXPECT_GT(share, 0);
      EXPECT_LE(share, 1);
      before = share;
    }
  }
}

TEST(ShareOfPeak, IsAStraightLineOverTheLogarithmBetweenPoints) {
  const Device device{.products = {{1e6, 0.2}, {1e8, 0.6}}};
  EXPECT_THAT(device.share_of_peak(1e7), DoubleEq(0.4));
}

TEST(Links, ReplaceTheOnesThatAreNamed) {
  const Cluster usual = cluster_of(device_preset("h100"));
  EXPECT_EQ(usual.between_name, "ib-400");
  Cluster cluster = usual;
  set_links(cluster, "");
  EXPECT_EQ(cluster.between.seconds_per_byte, usual.between.seconds_per_byte);
  set_links(cluster, "nvlink,ib-200");
  EXPECT_EQ(cluster.between_name, "ib-200");
  EXPECT_THAT(cluster.between.seconds_per_byte, DoubleEq(2 * usual.between.seconds_per_byte));
  EXPECT_EQ(cluster.device.link.seconds_per_byte, usual.device.link.seconds_per_byte);
  set_links(cluster, "eth-100,pcie");
  EXPECT_EQ(cluster.between_name, "eth-100");
  EXPECT_THAT(cluster.between.seconds_per_byte, DoubleEq(4 * usual.between.seconds_per_byte));
  EXPECT_EQ(cluster.device.link.seconds_per_byte, usual.device.host.seconds_per_byte);
}

TEST(Links, NonsenseIsRefused) {
  for (const char* names : {"ib", "ib-", "ib-0", "ib--5", "ib-1e9", "ib-nan", "ib-inf", "ib-200x", "eth-2 0", "x",
                            "nvlink,", "nvlink,pcie", "ib-200,eth-100", ",", "nvlink,,ib-200", "NVLINK"}) {
    Cluster cluster = cluster_of(device_preset("h100"));
    const auto set = [&] { set_links(cluster, names); };
    if (std::string_view(names) == "nvlink,")
      EXPECT_NO_THROW(set()) << names;
    else
      EXPECT_THROW(set(), InputError) << names;
  }
}

// A product of matrices at the share that its size reaches, the rest at the memory's speed.
TEST(SecondsOn, AreTheFormula) {
  const Device device{.peak_flops = 100, .peak_flops_fp32 = 10, .products = {{1, 0.5}}, .memory_bytes_per_second = 4};
  const Work work{.products = {{.count = 3, .rows = 1, .columns = 2, .depth = 5}}, .bytes = 8};
  EXPECT_THAT(seconds_on(device, work, DType::BFloat16), DoubleEq(8 / 4.0 + 3 * 20 / 50.0));
  EXPECT_THAT(seconds_on(device, work, DType::Float32), DoubleEq(8 / 4.0 + 3 * 20 / 5.0));
}

// The products of a batch (an attention's heads) run together, as one of their sum would.
TEST(SecondsOn, ABatchIsAsBusyAsOneProductOfItsSum) {
  const Device device{.peak_flops = 1e12, .products = {{1e6, 0.1}, {1e9, 0.9}}, .memory_bytes_per_second = 1e12};
  const Work one{.products = {{.count = 1, .rows = 1000, .columns = 1000, .depth = 500}}, .bytes = 0};
  const Work batch{.products = {{.count = 1000, .rows = 100, .columns = 100, .depth = 50}}, .bytes = 0};
  Work apart;
  apart.products.resize(1000, {.count = 1, .rows = 100, .columns = 100, .depth = 50});
  EXPECT_EQ(one.flops(), batch.flops());
  EXPECT_EQ(seconds_on(device, batch, DType::BFloat16), seconds_on(device, one, DType::BFloat16));
  EXPECT_NEAR(seconds_on(device, apart, DType::BFloat16) / seconds_on(device, one, DType::BFloat16), 9, 1e-9);
}

// Four devices that share every product take a quarter of the time for it, and two sums a pass of a layer more.
TEST(DeviceGroup, DividesAllButTheSumsAndWhatEachDoesAlone) {
  const Model model = make_model(model_preset("gpt2-124m"));
  const Cluster one = cluster_of(device_preset("a100-80g"));
  const Cluster split = device_group(one, 4, true), alone = device_group(one, 4, false);
  const MicroBatchShape shape{2, 1024, DType::BFloat16};
  const auto seconds = [&](const Cluster& cluster, size_t block) {
    return block_seconds_on(cluster.device, model, model.blocks[block], shape, Recompute::Full);
  };
  const auto activation = static_cast<double>(activation_bytes(model, shape));
  // Products of a quarter reach the share of their size: as one device's on a curve that is moved as far.
  Cluster quarter = one;
  for (Efficiency& point : quarter.device.products) point.flops *= 4;
  const BlockSeconds whole = seconds(quarter, 1), in_group = seconds(split, 1);
  const double sums = 2 * (one.device.link.fixed_seconds + 2 * 0.75 * activation * one.device.link.seconds_per_byte);
  EXPECT_THAT(in_group.forward, DoubleEq(whole.forward / 4 + sums));
  EXPECT_THAT(in_group.backward_input, DoubleEq(whole.backward_input / 4 + sums));
  EXPECT_THAT(in_group.backward_weight, DoubleEq(whole.backward_weight / 4));
  EXPECT_THAT(in_group.recompute, DoubleEq(whole.recompute / 4 + sums));
  const double each = activation * 0.75 / one.device.memory_bytes_per_second;  // what a device no longer shares
  EXPECT_NEAR(seconds(alone, 1).forward - in_group.forward, 6 * each, 1e-12);
  EXPECT_NEAR(seconds(alone, 1).backward_input - in_group.backward_input, 8 * each, 1e-12);
  EXPECT_NEAR(seconds(alone, 1).backward_weight - in_group.backward_weight, 4 * each, 1e-12);
  EXPECT_THAT(seconds(split, model.blocks.size() - 1).forward,
              DoubleEq(seconds(quarter, model.blocks.size() - 1).forward / 4));
  EXPECT_EQ(split.device.memory_bytes, 4 * one.device.memory_bytes);
  EXPECT_EQ(split.devices_in_node, 2u);
  EXPECT_THAT(split.between.seconds_per_byte, DoubleEq(one.between.seconds_per_byte / 4));
}

TEST(DeviceGroup, OfOneIsTheDevice) {
  const Model model = make_model(model_preset("llama-tiny"));
  const Cluster one = cluster_of(device_preset("h100")), group = device_group(one, 1, false);
  for (const Block& block : model.blocks)
    for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
      const MicroBatchShape shape{1, 64, DType::BFloat16};
      const BlockSeconds a = block_seconds_on(one.device, model, block, shape, recompute),
                         b = block_seconds_on(group.device, model, block, shape, recompute);
      EXPECT_EQ(a.forward, b.forward);
      EXPECT_EQ(a.backward_input, b.backward_input);
      EXPECT_EQ(a.backward_weight, b.backward_weight);
      EXPECT_EQ(a.recompute, b.recompute);
    }
}

TEST(SecondsOn, ScoresThatAreStoredPassTheMemory) {
  const Model model = make_model(model_preset("gpt2-tiny"));  // 4 heads, 64 tokens
  Device device = device_preset("a100-80g");
  const MicroBatchShape shape{3, 64, DType::BFloat16};
  const auto seconds = [&] { return block_seconds_on(device, model, model.blocks[1], shape, Recompute::Selective); };
  const BlockSeconds without = seconds();
  device.score_bytes = 10;
  const BlockSeconds with = seconds();
  const double scores = 10.0 * 3 * 4 * 64 * 64 / device.memory_bytes_per_second;
  EXPECT_NEAR(with.forward - without.forward, scores, 1e-15);
  EXPECT_NEAR(with.backward_input - without.backward_input, 2 * scores, 1e-15);
  EXPECT_NEAR(with.recompute - without.recompute, scores, 1e-15);
}

TEST(Utilisation, IsOneWhereDevicesDoNothingButTheModel) {
  const Model model = make_model(model_preset("gpt2-tiny"));
  Layout layout{.pp = 2, .dp = 4};
  layout.global_batch_size = 16;
  layout.micro_batch_size = 2;
  layout.precision = DType::BFloat16;
  const StepShape shape = step_shape(model, layout, 2);
  const Cluster cluster = cluster_of(device_preset("a100-80g"));
  double flops = 0;  // of one sequence
  for (const Block& block : model.blocks) flops += 3 * forward_flops(model, block, {1, model.config.seq_len});
  EXPECT_THAT(model_flops_utilisation(cluster, shape, 16 * flops / (8 * 312e12)), DoubleEq(1));
}

TEST(CostsOn, ABlockTakesItsWorkAndACollectiveTheSlowestLink) {
  const Model model = make_model(model_preset("llama-tiny"));
  Layout layout{.pp = 2, .dp = 16, .zero = 1};
  layout.global_batch_size = 64;
  layout.recompute = "blocks:2";
  layout.precision = DType::BFloat16;
  const StepShape shape = step_shape(model, layout, 2);
  const Program program = compile(shape);
  const Cluster cluster = cluster_of(device_preset("h100"));
  const CostModel costs = costs_on(cluster, shape, program);
  ASSERT_EQ(costs.blocks.size(), model.blocks.size());
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const Block& block = model.blocks[b];
    const auto seconds = [&](const Work& work) { return seconds_on(cluster.device, work, DType::BFloat16); };
    EXPECT_EQ(costs.blocks[b].forward, seconds(forward_work(model, block, shape.micro_batch)));
    EXPECT_EQ(costs.blocks[b].backward_input, seconds(backward_input_work(model, block, shape.micro_batch)));
    EXPECT_EQ(costs.blocks[b].backward_weight, seconds(backward_weight_work(model, block, shape.micro_batch)));
    EXPECT_EQ(costs.blocks[b].recompute > 0, b == 2) << b;
  }
  EXPECT_EQ(costs.nodes.members.size(), program.groups.size());
  EXPECT_EQ(costs.message.seconds_per_byte, cluster.device.link.seconds_per_byte);
  EXPECT_EQ(costs.nodes.message.seconds_per_byte, cluster.between.seconds_per_byte);
}

}  // namespace
}  // namespace shardpipe
