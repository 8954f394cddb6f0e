// A store gives back what was put there, byte by byte, whatever it is made of; and says clearly what a folder lacks.
#include "device/store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "base/error.h"
#include "device/arena.h"
#include "support/own_mounts.h"
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
      std::ranges::copy(data, memory);
      store->write(beside, {memory, bytes});
      std::memset(arena.at(0), 0xCD, arena.size());
      store->read(beside, {memory, bytes});
      EXPECT_TRUE(std::ranges::equal(data, std::span(memory, bytes))) << bytes << " bytes";
      EXPECT_EQ(memory[-1], std::byte{0xCD});
      EXPECT_EQ(memory[bytes], std::byte{0xCD}) << bytes << " bytes";
      std::vector<std::byte> found(beside);
      for (const uint64_t at : {uint64_t{0}, end}) {
        store->read(at, found);
        EXPECT_EQ(found, mark) << "at " << at << " beside " << bytes << " bytes";
      }
    }
}

// Against a copy in memory, wherever a transfer begins and ends, and wherever its memory lies.
TEST_P(EveryStore, KeepsWhatWasWrittenLastAtEveryPlace) {
  constexpr uint64_t blocks = 2'048, bytes = blocks * Store::alignment - 1'234;
  const auto store = of(bytes);
  std::vector<std::byte> expected(bytes, std::byte{0});
  const Arena arena(bytes + Store::alignment);
  std::mt19937 random(17);
  const auto below = [&](uint64_t limit) { return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random); };
  for (uint32_t turn = 0; turn < 60; ++turn) {
    const uint64_t offset = below(blocks) * Store::alignment;
    uint64_t size = below(std::min<uint64_t>(bytes - offset, uint64_t{1} << (1 + below(23)))) + 1;
    // A write takes its last block whole: it ends where a block or the store ends.
    size = std::min((size + Store::alignment - 1) / Store::alignment * Store::alignment, bytes - offset);
    std::byte* const memory = arena.at(below(2) == 0 ? 0 : below(Store::alignment));
    const std::vector<std::byte> data = random_bytes(size, turn);
    std::memcpy(memory, data.data(), size);
    store->write(offset, {memory, size});
    std::memcpy(expected.data() + offset, data.data(), size);
    const uint64_t from = below(blocks) * Store::alignment, count = below(bytes - from + 1);
    store->read(from, {memory, count});
    ASSERT_EQ(std::memcmp(memory, expected.data() + from, count), 0)
        << "turn " << turn << ": " << count << " bytes at " << from << ", after " << size << " at " << offset;
  }
  std::vector<std::byte> found(bytes);
  store->read(0, found);
  EXPECT_EQ(found, expected);
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

constexpr FileIo every_io[] = {{.direct = true, .io_uring = true},
                               {.direct = true, .io_uring = false},
                               {.direct = false, .io_uring = true},
                               {.direct = false, .io_uring = false}};

// Wherever it ends: at nothing, at a block, inside of one (a read that goes around the page cache ends there).
TEST(FileStore, ThatBecameShorterIsAnErrorThatNamesTheFolder) {
  for (const FileIo io : every_io)
    for (const uint64_t left : {0, 100, 8'192, 8'292, (3 << 20) + 1}) {
      const TemporaryFolder folder;
      const auto store = make_file_store(folder.path(), 4 << 20, io);
      const Arena arena(4 << 20);
      for (const auto& file : unnamed_files_of(folder.path())) std::filesystem::resize_file(file, left);
      EXPECT_THAT(
          what([&] { store->read(0, arena.memory()); }),
          AllOf(HasSubstr(folder.path().string()), HasSubstr("reading 4194304 bytes at 0"), HasSubstr("shorter")))
          << left << " bytes left, direct " << io.direct << ", io_uring " << io.io_uring;
      EXPECT_EQ(store->bytes_read(), 0u);
    }
}

// What the system says once the file has become another, by which a disk's errors can be had.
void replace_file(const TemporaryFolder& folder, const char* by, int flags) {
  const int other = open(by, flags | O_CLOEXEC);
  ASSERT_GE(other, 0) << by;
  for (const auto& file : unnamed_files_of(folder.path())) ASSERT_GE(dup2(other, std::stoi(file.filename())), 0);
  close(other);
}

TEST(FileStore, ErrorOfTheSystemIsToldWithItsPlace) {
  for (const FileIo io : every_io) {
    const TemporaryFolder folder;
    const auto store = make_file_store(folder.path(), 40 << 20, io);
    const Arena arena(20 << 20);
    ASSERT_NO_FATAL_FAILURE(replace_file(folder, "/dev/full", O_RDWR));
    EXPECT_THAT(what([&] { store->write(8192, arena.memory()); }),
                AllOf(HasSubstr(folder.path().string()), HasSubstr("writing 20971520 bytes at 8192"),
                      HasSubstr("No space left on device")));
    EXPECT_EQ(store->bytes_written(), 0u);
    EXPECT_THROW(store->write(0, arena.memory()), std::runtime_error) << "a second time";
    store->read(0, arena.memory());  // goes on: /dev/full gives zeros
  }
}

// Where io_uring itself fails, requests that it did not take must not be there for the next transfer.
TEST(FileStore, ErrorOfTheRingIsToldEveryTime) {
  const TemporaryFolder folder;
  const auto store = make_file_store(folder.path(), 40 << 20);
  const Arena arena(40 << 20);
  store->write(0, arena.memory());
  const int other = open("/dev/null", O_RDWR | O_CLOEXEC);
  int rings = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    if (std::filesystem::read_symlink(entry.path(), ignored) == "anon_inode:[io_uring]") {
      ASSERT_GE(dup2(other, std::stoi(entry.path().filename())), 0);
      ++rings;
    }
  close(other);
  if (rings == 0) GTEST_SKIP() << "no io_uring here";
  EXPECT_EQ(rings, 2);
  for (int time = 0; time < 3; ++time) {
    EXPECT_THAT(what([&] { store->read(0, arena.memory()); }), HasSubstr(folder.path().string()));
    EXPECT_THAT(what([&] { store->write(0, arena.memory()); }), HasSubstr(folder.path().string()));
  }
}

TEST(FileStore, WithoutRoomNamesTheBytesAndTheFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(what([&] { make_file_store(folder.path(), uint64_t{1} << 50); }),
              AllOf(HasSubstr(folder.path().string()), HasSubstr("1125899906842624 bytes"), HasSubstr("free there")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THROW(make_file_store(folder.path(), UINT64_MAX - 5000), InputError);
}

// A disk that is full: what was taken is given back, and the free bytes that are told are those after that.
TEST(FileStore, GivesBackWhatItTookOfADiskWithoutRoom) {
  const TemporaryFolder folder;
  const std::string missing = with_mount("tmpfs", folder.path(), 0, "size=1m", [&] {
    const uint64_t before = look_at_store_directory(folder.path()).free_bytes;
    EXPECT_EQ(before, 1u << 20);
    EXPECT_THAT(what([&] { make_file_store(folder.path(), 2 << 20); }),
                AllOf(HasSubstr(folder.path().string()), HasSubstr("2097152 bytes"), HasSubstr("No space left"),
                      HasSubstr("1048576 bytes are free")));
    EXPECT_EQ(look_at_store_directory(folder.path()).free_bytes, before);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    const auto store = make_file_store(folder.path(), 1 << 20);
    EXPECT_EQ(look_at_store_directory(folder.path()).free_bytes, 0u) << "all of it is taken at once";
  });
  if (!missing.empty()) GTEST_SKIP() << "no file system can be mounted here: " << missing;
}

// A limit of file sizes would end the process by a signal.
TEST(FileStore, BeyondALimitOfFileSizesIsRefused) {
  const TemporaryFolder folder;
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small { 1 << 20, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = what([&] { make_file_store(folder.path(), 2 << 20); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(error, AllOf(HasSubstr(folder.path().string()), HasSubstr("2097152 bytes"), HasSubstr("File too large")));
}

// ramfs has neither fallocate nor a count of free bytes.
TEST(FileStore, WorksWhereFilesCannotBeAllocated) {
  const TemporaryFolder folder;
  const std::string missing = with_mount("ramfs", folder.path(), 0, "", [&] {
    EXPECT_TRUE(look_at_store_directory(folder.path()).in_memory);
    const auto store = make_file_store(folder.path(), (3 << 20) + 5);
    const std::vector<std::byte> data = random_bytes((3 << 20) + 5, 4);
    std::vector<std::byte> found(data.size(), std::byte{1});
    store->read(0, found);
    EXPECT_THAT(found, Each(std::byte{0}));
    store->write(0, data);
    store->read(0, found);
    EXPECT_EQ(found, data);
  });
  if (!missing.empty()) GTEST_SKIP() << "no file system can be mounted here: " << missing;
}

TEST(StoreDirectory, SaysWhatIsWrongWithIt) {
  const TemporaryFolder folder;
  const std::string missing = folder / "missing", file = folder.write("file", "text");
  EXPECT_THAT(what([&] { look_at_store_directory(missing); }),
              AllOf(HasSubstr(missing), HasSubstr("no such folder"), HasSubstr("allowed: a folder")));
  EXPECT_THAT(what([&] { look_at_store_directory(file); }), AllOf(HasSubstr(file), HasSubstr("found a file")));
  EXPECT_THAT(what([&] { make_file_store(missing, 10); }), HasSubstr("no such folder"));
}

TEST(StoreDirectory, ThatCannotBeWrittenIsNamed) {
  const TemporaryFolder folder;
  const std::filesystem::path closed = folder / "closed";
  std::filesystem::create_directory(closed);
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(closed.c_str(), 0555), 0);
  bound_by_permission_bits([&] {
    for (const auto& use : std::initializer_list<std::function<void()>>{[&] { look_at_store_directory(closed); },
                                                                        [&] { make_file_store(closed, 10); }})
      EXPECT_THAT(what(use),
                  AllOf(HasSubstr(closed.string()), HasSubstr("Permission denied"), HasSubstr("allowed: a folder")));
  });
}

TEST(StoreDirectory, OfAReadOnlyFileSystemIsNamed) {
  const TemporaryFolder folder;
  const std::string missing = with_mount("tmpfs", folder.path(), MS_RDONLY, "size=1m", [&] {
    EXPECT_THAT(what([&] { look_at_store_directory(folder.path()); }),
                AllOf(HasSubstr(folder.path().string()), HasSubstr("Read-only file system"), HasSubstr("allowed")));
  });
  if (!missing.empty()) GTEST_SKIP() << "no file system can be mounted here: " << missing;
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
