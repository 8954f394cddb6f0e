#include "data/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

template <typename Value>
std::string raw(const std::vector<Value>& values) {
  std::string bytes(values.size() * sizeof(Value), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<int32_t> read_all(const TokenStream& stream, int64_t chunk = std::numeric_limits<int64_t>::max()) {
  std::vector<int32_t> tokens(static_cast<size_t>(stream.size()));
  for (int64_t at = 0; at < stream.size(); at += std::min(chunk, stream.size() - at))
    stream.read(at, std::span(tokens).subspan(static_cast<size_t>(at),
                                              static_cast<size_t>(std::min(chunk, stream.size() - at))));
  return tokens;
}

std::string decoded(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

std::vector<std::string> problems(const std::vector<std::string>& paths, TokenWidth width, int64_t vocabulary,
                                  int64_t minimum_tokens = 1) {
  try {
    TokenStream stream(paths, width, vocabulary, minimum_tokens);
  } catch (const InputError& error) {
    return error.problems();
  }
  return {};
}

// Bytes that are no UTF-8, lone continuation bytes, NUL, CRLF, and no newline at the end.
std::string awkward_text() {
  using namespace std::string_literals;
  std::string text = "\xFF\xFE first\r\nsecond \x80\xBF\0 third \xE2\x82\xAC \xF0\x9F\x98\x80\n\n"s;
  for (int byte = 255; byte >= 0; --byte) text += static_cast<char>(byte);
  while (text.size() < 9000) text += text.substr(0, 511);
  return text + "no newline";
}

TEST(Text, DecodesBackByteForByte) {
  TemporaryFolder folder;
  const std::string text = awkward_text();
  const TokenStream stream({write_file(folder / "a.txt", text)}, TokenWidth::Byte, 256, 1);
  EXPECT_EQ(stream.size(), static_cast<int64_t>(text.size()));
  EXPECT_EQ(decoded(read_all(stream)), text);
}

TEST(Text, DoesNotDependOnTheSizeOfAReadNorOnHowItIsCutIntoFiles) {
  TemporaryFolder folder;
  const std::string text = awkward_text();
  // Cuts inside the euro sign and between CR and LF, and files of one byte.
  const size_t crlf = text.find("\r\n") + 1, euro = text.find("\xE2\x82\xAC") + 1;
  const std::vector<size_t> cuts = {0, crlf, euro, euro + 1, euro + 2, 4096, text.size()};
  std::vector<std::string> paths;
  for (size_t i = 0; i + 1 < cuts.size(); ++i)
    paths.push_back(write_file(folder / std::to_string(i), text.substr(cuts[i], cuts[i + 1] - cuts[i])));
  const TokenStream stream(paths, TokenWidth::Byte, 256, 1);
  for (const int64_t chunk : {1, 7, 4096}) EXPECT_EQ(decoded(read_all(stream, chunk)), text) << "chunk " << chunk;
}

TEST(Stream, ReadsAnyRangeAcrossFileBorders) {
  TemporaryFolder folder;
  std::vector<int32_t> expected(23);
  std::iota(expected.begin(), expected.end(), 60000);
  std::vector<std::string> paths;
  for (size_t begin = 0, tokens = 1; begin < expected.size(); begin += tokens++) {
    const size_t end = std::min(expected.size(), begin + tokens);
    paths.push_back(write_file(folder / std::to_string(begin),
                               raw(std::vector<uint16_t>(expected.begin() + static_cast<ptrdiff_t>(begin),
                                                         expected.begin() + static_cast<ptrdiff_t>(end)))));
  }
  const TokenStream stream(paths, TokenWidth::Uint16, 65536, 1);
  ASSERT_EQ(stream.size(), 23);
  for (size_t first = 0; first <= 23; ++first)
    for (size_t count = 0; first + count <= 23; ++count) {
      std::vector<int32_t> tokens(count, -1);
      stream.read(static_cast<int64_t>(first), tokens);
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin() + static_cast<ptrdiff_t>(first)))
          << count << " from " << first;
    }
  std::vector<int32_t> two(2);
  EXPECT_THROW(stream.read(22, two), InvariantError);
  EXPECT_THROW(stream.read(-1, two), InvariantError);
}

TEST(Stream, IsReadByManyThreadsAtOnce) {
  TemporaryFolder folder;
  const std::string text = awkward_text();
  const TokenStream stream({write_file(folder / "a", text), write_file(folder / "b", text)}, TokenWidth::Byte, 256, 1);
  std::vector<std::string> read(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < read.size(); ++i)
    threads.emplace_back([&, i] { read[i] = decoded(read_all(stream, 97 + static_cast<int64_t>(i))); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& part : read) EXPECT_EQ(part, text + text);
}

TEST(Uint16, HoldsAVocabularyOfExactly65536) {
  TemporaryFolder folder;
  const auto path = write_file(folder / "a.bin", raw<uint16_t>({0, 1, 65534, 65535}));
  EXPECT_THAT(read_all(TokenStream({path}, TokenWidth::Uint16, 65536, 1)), ElementsAre(0, 1, 65534, 65535));
  EXPECT_THAT(problems({path}, TokenWidth::Uint16, 65535),
              ElementsAre(AllOf(HasSubstr(path), HasSubstr("token 65535 at byte 6"), HasSubstr("65535"))));
}

TEST(Uint16, RefusesAnOddNumberOfBytes) {
  TemporaryFolder folder;
  const auto path = write_file(folder / "a.bin", "12345");
  EXPECT_THAT(problems({path}, TokenWidth::Uint16, 65536),
              ElementsAre(AllOf(HasSubstr(path), HasSubstr("5 bytes"), HasSubstr("multiple of 2"))));
}

TEST(Uint32, HoldsIdsAbove65535) {
  TemporaryFolder folder;
  const auto path = write_file(folder / "a.bin", raw<uint32_t>({65541, 5, 69999}));
  EXPECT_THAT(read_all(TokenStream({path}, TokenWidth::Uint32, 70000, 1)), ElementsAre(65541, 5, 69999));
  EXPECT_THAT(problems({path}, TokenWidth::Uint32, 65541),
              ElementsAre(AllOf(HasSubstr("token 65541 at byte 0"), HasSubstr("--vocab-size 65541"))));
}

TEST(Uint32, RefusesIdsThatWouldBecomeNegative) {
  TemporaryFolder folder;
  const auto path = write_file(folder / "a.bin", raw<uint32_t>({1, 0x80000000u}));
  EXPECT_THAT(problems({path}, TokenWidth::Uint32, int64_t{1} << 31),
              ElementsAre(HasSubstr("token 2147483648 at byte 4")));
  EXPECT_THAT(problems({write_file(folder / "b.bin", "123456")}, TokenWidth::Uint32, 70000),
              ElementsAre(HasSubstr("multiple of 4")));
}

TEST(Vocabulary, TheFirstForeignTokenIsNamedWhereverItLies) {
  TemporaryFolder folder;
  const size_t tokens = 3 * 16384 + 5;  // several blocks of the scan and a rest
  std::vector<size_t> places = {0, 1, 16383, 16384, 32767, 32768, tokens - 1};
  std::mt19937 random(7);
  for (int i = 0; i < 5; ++i) places.push_back(random() % tokens);
  for (const size_t place : places) {
    std::vector<uint16_t> values(tokens, 4999);
    values[place] = 5000;
    values[tokens - 1] = std::max<uint16_t>(values[tokens - 1], place % 2 ? 60000 : 4999);  // a later one, too
    if (place == tokens - 1) values[place] = 5000;
    const auto path = write_file(folder / "a.bin", raw(values));
    EXPECT_THAT(problems({path}, TokenWidth::Uint16, 5000),
                ElementsAre(HasSubstr("token 5000 at byte " + std::to_string(2 * place) + ";")));
  }
}

TEST(Vocabulary, TextNeedsEveryByteThatItHolds) {
  TemporaryFolder folder;
  const auto path = write_file(folder / "a.txt", "abc\x80");
  EXPECT_THAT(problems({path}, TokenWidth::Byte, 128), ElementsAre(HasSubstr("token 128 at byte 3")));
  EXPECT_THAT(problems({path}, TokenWidth::Byte, 129), SizeIs(0));
}

TEST(BadFiles, AreAllNamedAtOnce) {
  TemporaryFolder folder;
  const auto empty = write_file(folder / "empty.txt", "");
  const auto good = write_file(folder / "good.txt", "abc");
  const auto beyond = good + "/beyond";  // below a file
  const auto pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_THAT(
      problems({folder / "missing", empty, folder.path(), good, beyond, pipe, folder / "loop"}, TokenWidth::Byte, 256),
      ElementsAre(AllOf(HasSubstr("--data"), HasSubstr("missing"), HasSubstr("No such file")),
                  AllOf(HasSubstr(empty), HasSubstr("empty")), AllOf(HasSubstr(folder.path()), HasSubstr("folder")),
                  AllOf(HasSubstr(beyond), HasSubstr("Not a directory")),
                  AllOf(HasSubstr(pipe), HasSubstr("not a regular file")),
                  AllOf(HasSubstr("loop"), HasSubstr("symbolic links"))));
}

TEST(BadFiles, AFileThatMayNotBeReadIsRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read every file";
  TemporaryFolder folder;
  const auto path = write_file(folder / "secret", "abc");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  EXPECT_THAT(problems({path}, TokenWidth::Byte, 256), ElementsAre(HasSubstr("Permission denied")));
}

TEST(BadFiles, TooFewTokensInAll) {
  TemporaryFolder folder;
  const auto first = write_file(folder / "a", "12345"), second = write_file(folder / "b", "678");
  EXPECT_THAT(problems({first, second}, TokenWidth::Byte, 256, 9),
              ElementsAre(AllOf(HasSubstr(first), HasSubstr(second), HasSubstr("8 tokens"), HasSubstr("at least 9"))));
  EXPECT_THAT(problems({first, second}, TokenWidth::Byte, 256, 8), SizeIs(0));
}

}  // namespace
}  // namespace shardpipe
