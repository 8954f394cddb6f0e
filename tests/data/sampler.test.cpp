// Which window is sample k: every epoch reads every window once, in an order that a stop does not disturb.
#include "data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace shardpipe {
namespace {

using Order = std::vector<int64_t>;

Order samples(uint64_t seed, int64_t count, int64_t first, int64_t end) {
  Order order;
  for (int64_t sample = first; sample < end; ++sample) order.push_back(window_of_sample(seed, count, sample));
  return order;
}

Order epoch(uint64_t seed, int64_t count, int64_t number) {
  return samples(seed, count, number * count, (number + 1) * count);
}

TEST(Sampler, EveryEpochReadsEveryWindowOnce) {
  for (const int64_t count : {1, 2, 3, 4, 5, 10, 16, 17, 63, 64, 65, 255, 256, 257, 1000}) {
    Order all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}})
      for (const int64_t number : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{1'000'000'000}}) {
        Order order = epoch(seed, count, number);
        std::ranges::sort(order);
        ASSERT_EQ(order, all) << count << " windows, seed " << seed << ", epoch " << number;
      }
  }
}

TEST(Sampler, AStopAnywhereDoesNotChangeWhatFollows) {
  const Order uninterrupted = samples(7, 10, 0, 35);
  // Asked in another order, as a run that resumes (or another rank) would: nothing is remembered.
  for (const int64_t stop : {13, 10, 20, 1, 34}) {
    Order resumed;
    for (int64_t sample = 34; sample >= stop; --sample)
      resumed.insert(resumed.begin(), window_of_sample(7, 10, sample));
    EXPECT_EQ(resumed, Order(uninterrupted.begin() + stop, uninterrupted.end())) << "stop after " << stop;
  }
  EXPECT_NE(epoch(7, 10, 1), epoch(7, 10, 0)) << "a later epoch does not repeat the first one's order";
}

TEST(Sampler, TheOrderIsAPromiseToOldRuns) {
  // A run that resumes under another build must see the same samples.
  EXPECT_EQ(epoch(1, 10, 0), (Order{6, 7, 3, 4, 1, 0, 8, 2, 9, 5}));
  EXPECT_EQ(epoch(1, 10, 1), (Order{6, 9, 7, 5, 3, 1, 8, 0, 2, 4}));
}

TEST(Sampler, EpochsAndSeedsHaveTheirOwnOrders) {
  std::set<Order> orders;
  for (uint64_t seed = 0; seed < 20; ++seed)
    for (int64_t number = 0; number < 20; ++number) orders.insert(epoch(seed, 1000, number));
  EXPECT_EQ(orders.size(), 400u);
}

TEST(Sampler, TheFirstEpochIsShuffledToo) {
  int64_t neighbours = 0;
  const Order order = epoch(1, 1000, 0);
  for (size_t i = 1; i < order.size(); ++i) neighbours += order[i] == order[i - 1] + 1;
  EXPECT_LE(neighbours, 10);  // one is to be expected
}

// Pearson's chi-squared of counts that should be equal.
double chi_squared(const std::vector<int64_t>& counts) {
  const double expected = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0})) /
                          static_cast<double>(counts.size());
  double sum = 0;
  for (const int64_t count : counts) sum += std::pow(static_cast<double>(count) - expected, 2) / expected;
  return sum;
}

TEST(Sampler, EveryWindowIsFirstEquallyOften) {
  for (const int64_t count : {2, 3, 5, 10}) {
    std::vector<int64_t> first(static_cast<size_t>(count), 0);
    for (int64_t number = 0; number < 10'000; ++number)
      ++first[static_cast<size_t>(window_of_sample(3, count, number * count))];
    EXPECT_LT(chi_squared(first), 40) << count << " windows";  // at most nine degrees of freedom: one in 10^5 is 39
  }
}

TEST(Sampler, ThreeWindowsComeInAllSixOrdersEquallyOften) {
  std::map<Order, int64_t> orders;
  for (int64_t number = 0; number < 6000; ++number) ++orders[epoch(11, 3, number)];
  std::vector<int64_t> counts;
  for (const auto& [order, count] : orders) counts.push_back(count);
  ASSERT_EQ(counts.size(), 6u);
  EXPECT_LT(chi_squared(counts), 35);
}

TEST(Sampler, WindowsAcrossTheTextComeAtAnyTime) {
  // In which tenth of the epoch does a window of each tenth of the text come: 100 cells of 100 windows on average.
  std::vector<int64_t> cells(100, 0);
  for (int64_t number = 0; number < 10; ++number) {
    const Order order = epoch(5, 1000, number);
    for (size_t i = 0; i < order.size(); ++i) ++cells[i / 100 * 10 + static_cast<size_t>(order[i] / 100)];
  }
  EXPECT_LT(chi_squared(cells), 160);  // 81 degrees of freedom
}

TEST(Sampler, SamplesFarAwayAreInRange) {
  for (const int64_t count : {int64_t{1}, int64_t{3}, int64_t{1} << 40, (int64_t{1} << 62) + 1})
    for (const int64_t sample : {int64_t{0}, int64_t{1} << 50, std::numeric_limits<int64_t>::max()}) {
      const int64_t window = window_of_sample(1, count, sample);
      EXPECT_GE(window, 0);
      EXPECT_LT(window, count);
    }
  EXPECT_THROW(window_of_sample(1, 0, 0), InvariantError);
  EXPECT_THROW(window_of_sample(1, 10, -1), InvariantError);
}

// The positions of the tokens that windows predict.
std::vector<int64_t> targets(const Windows& windows) {
  std::vector<int64_t> positions;
  for (int64_t window = 0; window < windows.count(); ++window)
    for (int64_t i = 1; i <= windows.sequence; ++i)
      positions.push_back(windows.first_token + window * windows.sequence + i);
  return positions;
}

TEST(Split, HoldsOutWhatItSaysAndSharesNoTarget) {
  for (int64_t tokens = 0; tokens <= 60; ++tokens)
    for (int64_t sequence = 1; sequence <= 8; ++sequence)
      for (const double fraction : {0.0, 0.05, 0.1, 0.25, 0.5, 0.9, 0.99}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, sequence " << sequence << ", held out " << fraction);
        const Splits splits = split(tokens, sequence, fraction);
        const std::vector<int64_t> train = targets(splits.train), held_out = targets(splits.held_out);
        std::set<int64_t> all(train.begin(), train.end());
        all.insert(held_out.begin(), held_out.end());
        ASSERT_EQ(all.size(), train.size() + held_out.size()) << "a target in two windows";
        if (!all.empty()) {
          ASSERT_GE(*all.begin(), 1) << "the first token has nothing before it";
          ASSERT_LT(*all.rbegin(), tokens);
        }
        // The text the windows read, inputs and targets: none of the one part is in the other.
        ASSERT_EQ(splits.train.first_token, 0);
        ASSERT_EQ(splits.train.end_token, splits.held_out.first_token);
        ASSERT_EQ(splits.held_out.end_token, tokens);
        // By brute force: as many windows as fit.
        int64_t fit = 0;
        while ((fit + 1) * sequence + 1 <= splits.train.end_token) ++fit;
        ASSERT_EQ(splits.train.count(), fit);
        int64_t asked = 0;
        while (static_cast<double>((asked + 1) * sequence) <= static_cast<double>(tokens) * fraction) ++asked;
        ASSERT_EQ(splits.held_out.count(), std::min(asked, std::max<int64_t>(0, (tokens - 1) / sequence)));
      }
}

TEST(Split, NoTokenIsLostBetweenWindows) {
  for (int64_t tokens = 2; tokens <= 40; ++tokens)
    for (int64_t sequence = 1; sequence < tokens; ++sequence) {
      const Windows windows = split(tokens, sequence, 0).train;
      const std::vector<int64_t> found = targets(windows);
      std::vector<int64_t> expected(static_cast<size_t>((tokens - 1) / sequence * sequence));
      std::iota(expected.begin(), expected.end(), 1);
      ASSERT_EQ(found, expected) << tokens << " tokens, sequence " << sequence;
    }
}

TEST(Window, TargetsAreTheInputsOneLater) {
  const TemporaryFolder folder;
  const TokenStream stream({folder.write("a", "abcdefg"), folder.write("b", "hijklmnop")}, TokenWidth::Byte, 256, 1);
  const Windows windows{.first_token = 1, .end_token = 16, .sequence = 4};
  ASSERT_EQ(windows.count(), 3);
  std::vector<std::string> inputs, expected_targets;
  for (int64_t window = 0; window < windows.count(); ++window) {
    std::vector<int32_t> input(4), target(4);
    read_window(stream, windows, window, input, target);
    inputs.emplace_back(input.begin(), input.end());
    expected_targets.emplace_back(target.begin(), target.end());
  }
  EXPECT_EQ(inputs, (std::vector<std::string>{"bcde", "fghi", "jklm"}));
  EXPECT_EQ(expected_targets, (std::vector<std::string>{"cdef", "ghij", "klmn"}));
  std::vector<int32_t> rest(4);
  EXPECT_THROW(read_window(stream, windows, 3, rest, rest), InvariantError);
  EXPECT_THROW(read_window(stream, windows, -1, rest, rest), InvariantError);
}

TEST(UnigramEntropy, OfUniformTokensIsTheLogarithmOfTheirNumber) {
  const TemporaryFolder folder;
  for (const int count : {1, 2, 3, 26}) {
    std::string text;
    for (int i = 0; i < 10 * count; ++i) text += static_cast<char>('a' + i % count);
    const TokenStream stream({folder.write("text", text)}, TokenWidth::Byte, 256, 1);
    EXPECT_NEAR(unigram_entropy(stream, 0, stream.size()), std::log(count), 1e-12) << count;
  }
}

TEST(UnigramEntropy, OfTwoTokensIsTheBinaryEntropy) {
  const TemporaryFolder folder;
  const TokenStream stream({folder.write("text", "zz" + std::string(30, 'a') + std::string(10, 'b') + "zz")},
                           TokenWidth::Byte, 256, 1);
  EXPECT_NEAR(unigram_entropy(stream, 2, 42), -0.75 * std::log(0.75) - 0.25 * std::log(0.25), 1e-12)
      << "of its range alone";
}

TEST(UnigramEntropy, CountsLargeIdsAndLongTexts) {
  const TemporaryFolder folder;
  // Longer than what is read at once; half the tokens are beyond 65535.
  std::string bytes;
  for (uint32_t i = 0; i < 100'000; ++i) {
    const uint32_t token = i % 2 == 0 ? i % 4 : 100'000 + i % 4;
    bytes.append(reinterpret_cast<const char*>(&token), sizeof token);
  }
  const TokenStream stream({folder.write("tokens", bytes)}, TokenWidth::Uint32, 200'000, 1);
  EXPECT_NEAR(unigram_entropy(stream, 0, stream.size()), std::log(4), 1e-12);
}

TEST(UnigramEntropy, OfNothingIsZero) {
  const TemporaryFolder folder;
  const TokenStream stream({folder.write("text", "a")}, TokenWidth::Byte, 256, 1);
  EXPECT_EQ(unigram_entropy(stream, 1, 1), 0);
}

}  // namespace
}  // namespace shardpipe
