#include "data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace shardpipe {
namespace {

using testing::ElementsAre;
using testing::Ne;

std::vector<int64_t> order(uint64_t seed, int64_t count, int64_t first_sample, int64_t samples) {
  std::vector<int64_t> windows;
  for (int64_t sample = first_sample; sample < first_sample + samples; ++sample)
    windows.push_back(window_of_sample(seed, count, sample));
  return windows;
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::ranges::sort(values);
  return values;
}

std::vector<int64_t> iota(int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(Order, EveryEpochIsAPermutation) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}})
    for (int64_t count = 1; count <= 70; ++count)
      for (const int64_t epoch : {0, 1, 2, 1000})
        EXPECT_EQ(sorted(order(seed, count, epoch * count, count)), iota(count))
            << "seed " << seed << ", " << count << " windows, epoch " << epoch;
  for (const int64_t count : {1023, 1024, 1025, 4096, 4097, 65537})
    EXPECT_EQ(sorted(order(3, count, 5 * count, count)), iota(count)) << count << " windows";
}

TEST(Order, EpochsAndSeedsHaveOrdersOfTheirOwn) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 20; ++seed)
    for (int64_t epoch = 0; epoch < 20; ++epoch) orders.insert(order(seed, 50, epoch * 50, 50));
  EXPECT_EQ(orders.size(), 400u);
  EXPECT_EQ(orders.count(iota(50)), 0u) << "in the order of the text";
}

TEST(Order, EveryWindowComesAtEveryPlaceAboutEquallyOften) {
  // 16,000 epochs of 5 windows: 3,200 expected in each cell, standard deviation 51; 6 of them are allowed.
  const int64_t windows = 5, epochs = 16000;
  std::vector<int64_t> cells(windows * windows);
  for (int64_t sample = 0; sample < windows * epochs; ++sample)
    ++cells[static_cast<size_t>(sample % windows * windows + window_of_sample(9, windows, sample))];
  for (const int64_t cell : cells) EXPECT_NEAR(static_cast<double>(cell), 3200, 306);
}

TEST(Order, LargeCountsAndSampleNumbersStayInRange) {
  const int64_t count = (int64_t{1} << 40) + 12345;
  std::set<int64_t> seen;
  for (int64_t k = 0; k < 1000; ++k) {
    const int64_t window = window_of_sample(4, count, 3 * count + k);
    EXPECT_TRUE(window >= 0 && window < count);
    seen.insert(window);
  }
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_THROW(window_of_sample(1, 0, 0), InvariantError);
  EXPECT_THROW(window_of_sample(1, 10, -1), InvariantError);
}

// A run of 10 windows, stopped and taken up again: what follows is what the run without a stop would have read.
TEST(Resume, GivesTheSamplesOfARunWithoutAStop) {
  for (const int64_t batch : {1, 4}) {  // 4: steps that lie across the border of two epochs
    const int64_t steps = 26;
    const auto whole = order(1, 10, 0, steps * batch);
    for (int64_t epoch = 0; (epoch + 1) * 10 <= steps * batch; ++epoch)
      EXPECT_EQ(sorted({whole.begin() + epoch * 10, whole.begin() + (epoch + 1) * 10}), iota(10));
    for (const int64_t stop : {10, 13, 20}) {
      std::vector<int64_t> resumed;
      // On a thread of its own: nothing that the first run left behind can help.
      std::thread([&] { resumed = order(1, 10, stop * batch, (steps - stop) * batch); }).join();
      EXPECT_EQ(resumed, std::vector<int64_t>(whole.begin() + stop * batch, whole.end())) << "stopped at " << stop;
      EXPECT_THAT(resumed, Ne(order(1, 10, 0, (steps - stop) * batch))) << "the first epoch's order again";
    }
  }
}

TEST(Windows, CountIsWhatFitsByBruteForce) {
  for (int64_t sequence = 1; sequence <= 7; ++sequence)
    for (int64_t first = 0; first <= 3; ++first)
      for (int64_t end = first; end <= first + 40; ++end) {
        int64_t fit = 0;
        while (first + fit * sequence + sequence + 1 <= end) ++fit;  // inputs, and the last target
        EXPECT_EQ((Windows{first, end, sequence}.count()), fit) << first << " to " << end << " by " << sequence;
      }
}

TEST(Windows, TargetsAreTheInputsOneLaterAndNothingIsLeftOut) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 50; ++i) text += static_cast<char>(i);
  const TokenStream stream({write_file(folder / "a", text.substr(0, 13)), write_file(folder / "b", text.substr(13))},
                           TokenWidth::Byte, 256, 1);
  const Windows windows{2, 50, 6};
  ASSERT_EQ(windows.count(), 7);
  std::vector<int32_t> inputs(6), targets(6);
  for (int64_t window = 0; window < 7; ++window) {
    read_window(stream, windows, window, inputs, targets);
    for (int32_t i = 0; i < 6; ++i) {
      EXPECT_EQ(inputs[static_cast<size_t>(i)], 2 + 6 * window + i);
      EXPECT_EQ(targets[static_cast<size_t>(i)], 3 + 6 * window + i);
    }
  }
  EXPECT_THROW(read_window(stream, windows, 7, inputs, targets), InvariantError);
  EXPECT_THROW(read_window(stream, windows, -1, inputs, targets), InvariantError);
}

TEST(Split, PartsShareNoTokenAndCoverTheText) {
  for (int64_t tokens = 1; tokens <= 300; tokens += 7)
    for (const int64_t sequence : {1, 4, 16})
      for (const double fraction : {0.0, 0.01, 0.05, 0.5, 0.99}) {
        const Splits splits = split(tokens, sequence, fraction);
        EXPECT_EQ(splits.train.first_token, 0);
        EXPECT_EQ(splits.train.end_token, splits.held_out.first_token);
        EXPECT_EQ(splits.held_out.end_token, tokens);
        EXPECT_EQ(splits.train.sequence, sequence);
        EXPECT_EQ(splits.held_out.sequence, sequence);
        const int64_t held_out = tokens - splits.held_out.first_token;
        // Whole windows with their last target, or nothing at all.
        if (held_out > 0 && held_out < tokens) {
          EXPECT_EQ(held_out, splits.held_out.count() * sequence + 1);
        }
        EXPECT_LE(static_cast<double>(splits.held_out.count() * sequence), static_cast<double>(tokens) * fraction);
        EXPECT_GT(static_cast<double>((splits.held_out.count() + 1) * sequence + 1),
                  static_cast<double>(tokens) * fraction);
      }
}

TEST(Split, NothingIsHeldOutForAFractionOfZeroOrLessThanAWindow) {
  EXPECT_EQ(split(1000, 10, 0).held_out.count(), 0);
  EXPECT_EQ(split(1000, 10, 0).train.end_token, 1000);
  EXPECT_EQ(split(1000, 100, 0.05).train.end_token, 1000);
  const Splits tenth = split(1000, 10, 0.1);
  EXPECT_EQ(tenth.held_out.count(), 10);
  EXPECT_EQ(tenth.train.count(), 89);  // 899 tokens: 89 windows and the last target
}

template <typename Value>
TokenStream stream_of(const TemporaryFolder& folder, const std::vector<Value>& values, TokenWidth width) {
  std::string bytes(values.size() * sizeof(Value), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return TokenStream({write_file(folder / "tokens", bytes)}, width, int64_t{1} << 31, 1);
}

TEST(UnigramEntropy, ClosedForms) {
  TemporaryFolder folder;
  std::vector<uint8_t> uniform;
  for (int i = 0; i < 256 * 300; ++i) uniform.push_back(static_cast<uint8_t>(i));  // longer than one read
  const auto bytes = stream_of(folder, uniform, TokenWidth::Byte);
  EXPECT_NEAR(unigram_entropy(bytes, 0, bytes.size()), std::log(256.0), 1e-12);
  EXPECT_NEAR(unigram_entropy(bytes, 0, 4), std::log(4.0), 1e-12);
  EXPECT_EQ(unigram_entropy(bytes, 5, 6), 0);
  EXPECT_EQ(unigram_entropy(bytes, 5, 5), 0) << "of nothing";

  const auto uneven = stream_of<uint16_t>(folder, {65535, 65535, 65535, 7}, TokenWidth::Uint16);
  EXPECT_NEAR(unigram_entropy(uneven, 0, 4), -0.75 * std::log(0.75) - 0.25 * std::log(0.25), 1e-12);
  EXPECT_EQ(unigram_entropy(uneven, 0, 3), 0);

  const auto wide = stream_of<uint32_t>(folder, {65541, 5, 65541, 2000000000}, TokenWidth::Uint32);
  EXPECT_NEAR(unigram_entropy(wide, 0, 4), 0.5 * std::log(2.0) + 0.5 * std::log(4.0), 1e-12);
}

}  // namespace
}  // namespace shardpipe
