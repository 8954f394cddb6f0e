#include "train/samples.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "support/temporary_folder.h"

namespace shardpipe {
namespace {

using Tokens = std::vector<int32_t>;
struct Sample {
  Tokens inputs, targets;
  bool operator==(const Sample&) const = default;
};
Sample read(const SampleSource& source, int64_t sample, size_t length = 16) {
  Sample read{Tokens(length, -7), Tokens(length, -7)};
  source(sample, read.inputs, read.targets);
  return read;
}

TEST(RandomSamples, DependOnSeedAndNumberAlone) {
  const SampleSource first = random_samples(3, 65), second = random_samples(3, 65);
  std::vector<Sample> forwards, backwards;
  for (int64_t k = 0; k < 20; ++k) forwards.push_back(read(first, k));
  for (int64_t k = 20; k-- > 0;) backwards.insert(backwards.begin(), read(second, k));
  EXPECT_EQ(forwards, backwards);
  EXPECT_NE(read(random_samples(4, 65), 0), forwards[0]);
  for (size_t k = 1; k < 20; ++k) EXPECT_NE(forwards[k], forwards[0]);
}

TEST(RandomSamples, TargetsAreTheInputsOneLaterAndInTheVocabulary) {
  const Sample sample = read(random_samples(3, 5), 11, 200);
  std::set<int32_t> seen(sample.targets.begin(), sample.targets.end());
  EXPECT_EQ(seen, (std::set<int32_t>{0, 1, 2, 3, 4}));
  for (size_t i = 0; i + 1 < 200; ++i) EXPECT_EQ(sample.targets[i], sample.inputs[i + 1]);
}

// A stage that reads the targets alone and one that reads the tokens alone see the same sample.
TEST(RandomSamples, OfASideAloneAreThoseOfBoth) {
  const SampleSource source = random_samples(3, 65);
  Tokens inputs(16), targets(16);
  source(5, inputs, {});
  source(5, {}, targets);
  EXPECT_EQ(read(source, 5), (Sample{inputs, targets}));
}

class OfText : public testing::Test {
 protected:
  TemporaryFolder folder_;
  std::string text_ = "the quick brown fox jumps over the lazy dog, and on";  // 51 bytes: 12 windows of 4
  TokenStream stream_{{write_file(folder_ / "text", text_)}, TokenWidth::Byte, 256, 5};
  Windows windows_{0, static_cast<int64_t>(text_.size()), 4};
};

TEST_F(OfText, InOrderAreTheWindowsOfTheText) {
  const SampleSource source = windows_in_order(stream_, windows_);
  for (int64_t k = 0; k < windows_.count(); ++k) {
    const Sample sample = read(source, k, 4);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(sample.inputs[i], text_[static_cast<size_t>(4 * k) + i]);
      EXPECT_EQ(sample.targets[i], text_[static_cast<size_t>(4 * k) + i + 1]);
    }
  }
}

TEST_F(OfText, ShuffledAreEachWindowOnceAnEpochInAnotherOrder) {
  const SampleSource in_order = windows_in_order(stream_, windows_), shuffled = shuffled_windows(stream_, windows_, 3);
  const int64_t count = windows_.count();
  ASSERT_EQ(count, 12);
  std::multiset<Tokens> all;
  for (int64_t k = 0; k < count; ++k) all.insert(read(in_order, k, 4).inputs);
  std::vector<std::vector<Tokens>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    epochs.emplace_back();
    for (int64_t k = 0; k < count; ++k) epochs.back().push_back(read(shuffled, epoch * count + k, 4).inputs);
    EXPECT_EQ(std::multiset<Tokens>(epochs.back().begin(), epochs.back().end()), all) << "epoch " << epoch;
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

}  // namespace
}  // namespace shardpipe
