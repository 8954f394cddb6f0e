// A store gives back what was put there, byte by byte, whatever it is made of; and says clearly what a folder lacks.
#include "device/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>

#include "base/error.h"
#include "device/arena.h"
#include "support/temporary_folder.h"
#include "support/unnamed_files.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

enum class Way { Host, DirectAndUring, Direct, Uring, Plain };

std::unique_ptr<Store> make_store(Way way, const std::filesystem::path& folder, uint64_t bytes) {
  if (way == Way::Host) return make_host_store(bytes);
  return make_file_store(folder, bytes,
                         {.direct = way == Way::DirectAndUring || way == Way::Direct,
                          .io_uring = way == Way::DirectAndUring || way == Way::Uring});
}

std::vector<std::byte> random_bytes(uint64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class EveryStore : public testing::TestWithParam<Way> {
 protected:
  TemporaryFolder folder_;
  std::unique_ptr<Store> of(uint64_t bytes) const { return make_store(GetParam(), folder_.path(), bytes); }
};
INSTANTIATE_TEST_SUITE_P(Ways, EveryStore,
                         testing::Values(Way::Host, Way::DirectAndUring, Way::Direct, Way::Uring, Way::Plain));

TEST_P(EveryStore, IsZeroAtFirst) {
  const auto store = of(100'000);
  std::vector<std::byte> bytes(100'000, std::byte{1});
  store->read(0, bytes);
  EXPECT_THAT(bytes, Each(std::byte{0}));
}

// Sizes around a block, of odd shards, and of many requests; memory on a block or not; what lies beside stays.
TEST_P(EveryStore, GivesBackWhatWasWrittenAndTouchesNothingElse) {
  constexpr uint64_t most = 24 << 20, beside = 8192;
  const auto store = of(most + 2 * beside);
  const Arena arena(most + 2 * beside + 64);
  const std::vector<std::byte> mark(beside, std::byte{0xAB});
  for (const uint64_t misplaced : {0, 64})
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{511}, uint64_t{4095}, uint64_t{4096},
                                 uint64_t{4097}, uint64_t{4 * 1'000'003}, (uint64_t{1} << 20) - 1, most - 5}) {
      const std::vector<std::byte> data = random_bytes(bytes, static_cast<uint32_t>(bytes + misplaced));
      const uint64_t end = (beside + bytes + Store::alignment - 1) / Store::alignment * Store::alignment;
      store->write(0, mark);
      store->write(end, mark);
      std::byte* const memory = arena.at(beside + misplaced);
      std::memcpy(memory, data.data(), bytes);
      store->write(beside, {memory, bytes});
      std::memset(arena.at(0), 0xCD, arena.size());
      store->read(beside, {memory, bytes});
      EXPECT_EQ(std::memcmp(memory, data.data(), bytes), 0) << bytes << " bytes";
      EXPECT_EQ(memory[-1], std::byte{0xCD});
      EXPECT_EQ(memory[bytes], std::byte{0xCD}) << bytes << " bytes";
      std::vector<std::byte> found(beside);
      for (const uint64_t at : {uint64_t{0}, end}) {
        store->read(at, found);
        EXPECT_EQ(found, mark) << "at " << at << " beside " << bytes << " bytes";
      }
    }
}

TEST_P(EveryStore, IsReadAndWrittenAtTheSameTime) {
  constexpr uint64_t half = 4 << 20;
  const auto store = of(2 * half);
  const std::vector<std::byte> data = random_bytes(half, 5);
  store->write(0, data);
  std::thread writer([&] {
    for (int k = 0; k < 20; ++k) store->write(half, data);
  });
  std::vector<std::byte> found(half);
  for (int k = 0; k < 20; ++k) {
    std::fill(found.begin(), found.end(), std::byte{0});
    store->read(0, found);
    EXPECT_EQ(found, data);
  }
  writer.join();
  store->read(half, found);
  EXPECT_EQ(found, data);
  EXPECT_EQ(store->bytes_read(), 21 * half);
  EXPECT_EQ(store->bytes_written(), 21 * half);
}

TEST_P(EveryStore, RefusesWhatIsNotInIt) {
  const auto store = of(10'000);
  std::vector<std::byte> bytes(4096);
  EXPECT_THROW(store->read(1, bytes), InvariantError);
  EXPECT_THROW(store->read(8192, bytes), InvariantError);
  EXPECT_THROW(store->write(12'288, {}), InvariantError);
}

std::string what(const std::function<void()>& fails) {
  try {
    fails();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(FileStore, HasNoNameAndMeetsNoOther) {
  const TemporaryFolder folder;
  const auto first = make_file_store(folder.path(), 8192), second = make_file_store(folder.path(), 8192);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THAT(unnamed_files_of(folder.path()), SizeIs(2));
  std::vector<std::byte> ones(8192, std::byte{1}), found(8192);
  first->write(0, ones);
  second->read(0, found);
  EXPECT_THAT(found, Each(std::byte{0}));
}

TEST(FileStore, WorksOnWhenItsFolderIsGone) {
  std::unique_ptr<Store> store;
  {
    const TemporaryFolder folder;
    store = make_file_store(folder.path(), 8192);
  }
  const std::vector<std::byte> data = random_bytes(8192, 1);
  std::vector<std::byte> found(8192);
  store->write(0, data);
  store->read(0, found);
  EXPECT_EQ(found, data);
}

TEST(FileStore, ThatBecameShorterIsAnErrorThatNamesTheFolder) {
  for (const bool io_uring : {false, true}) {
    const TemporaryFolder folder;
    const auto store = make_file_store(folder.path(), 4 << 20, {.direct = true, .io_uring = io_uring});
    std::vector<std::byte> bytes(4 << 20);
    for (const auto& file : unnamed_files_of(folder.path())) std::filesystem::resize_file(file, 8192);
    EXPECT_THAT(what([&] { store->read(0, bytes); }),
                AllOf(HasSubstr(folder.path().string()), HasSubstr("reading"), HasSubstr("shorter")));
  }
}

TEST(FileStore, WithoutRoomNamesTheBytesAndTheFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(what([&] { make_file_store(folder.path(), uint64_t{1} << 50); }),
              AllOf(HasSubstr(folder.path().string()), HasSubstr("1125899906842624 bytes"), HasSubstr("free there")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THROW(make_file_store(folder.path(), UINT64_MAX - 5000), InputError);
}

TEST(StoreDirectory, SaysWhatIsWrongWithIt) {
  const TemporaryFolder folder;
  const std::string missing = folder / "missing", file = folder.write("file", "text");
  EXPECT_THAT(what([&] { look_at_store_directory(missing); }),
              AllOf(HasSubstr(missing), HasSubstr("no such folder"), HasSubstr("allowed: a folder")));
  EXPECT_THAT(what([&] { look_at_store_directory(file); }), AllOf(HasSubstr(file), HasSubstr("found a file")));
  EXPECT_THAT(what([&] { make_file_store(missing, 10); }), HasSubstr("no such folder"));
}

TEST(StoreDirectory, KnowsMemoryAndLeavesNothing) {
  const TemporaryFolder folder;
  const StoreDirectory found = look_at_store_directory(folder.path());
  EXPECT_GT(found.free_bytes, 0u);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  constexpr long tmpfs = 0x01021994;
  struct statfs status {};
  if (statfs("/dev/shm", &status) != 0 || status.f_type != tmpfs || access("/dev/shm", W_OK) != 0)
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  EXPECT_TRUE(look_at_store_directory("/dev/shm").in_memory);
}

}  // namespace
}  // namespace shardpipe
