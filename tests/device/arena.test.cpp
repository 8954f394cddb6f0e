#include "device/arena.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "base/error.h"

namespace shardpipe {
namespace {

TEST(Arena, BeginsAtAHugePageAndIsZero) {
  for (const uint64_t bytes :
       {uint64_t{1}, uint64_t{4096}, Arena::alignment - 1, Arena::alignment, 3 * Arena::alignment + 17}) {
    const Arena arena(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.memory().data()) % Arena::alignment, 0U);
    EXPECT_EQ(arena.size(), bytes);
    EXPECT_EQ(arena.memory().size(), bytes);
    EXPECT_TRUE(std::ranges::all_of(arena.memory(), [](std::byte byte) { return byte == std::byte{0}; }));
    std::ranges::fill(arena.memory(), std::byte{0xFF});
    EXPECT_EQ(arena.at(bytes - 1), &arena.memory().back());
  }
}

TEST(Arena, OfNothingIsFine) {
  const Arena arena(0);
  EXPECT_TRUE(arena.memory().empty());
  EXPECT_EQ(arena.size(), 0U);
}

TEST(Arena, ThatCannotBeHadIsTheUsersBusinessAndNamesTheBytes) {
  EXPECT_THAT([] { Arena arena(uint64_t{1} << 60); },
              testing::ThrowsMessage<InputError>(testing::HasSubstr("1152921504606846976 bytes")));
  EXPECT_THAT([] { Arena arena(UINT64_MAX); },
              testing::ThrowsMessage<InputError>(testing::HasSubstr("18446744073709551615 bytes")));
}

TEST(Arena, MovesWithItsMemory) {
  Arena first(100);
  first.memory()[5] = std::byte{7};
  const std::byte* data = first.memory().data();
  Arena second(std::move(first));
  EXPECT_EQ(second.memory().data(), data);
  Arena third(10);
  third = std::move(second);
  EXPECT_EQ(third.memory().data(), data);
  EXPECT_EQ(third.memory()[5], std::byte{7});
}

}  // namespace
}  // namespace shardpipe
