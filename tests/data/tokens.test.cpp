// Token files: every byte and every id reads back as it was written, in any pieces; what cannot be read is refused with
// its place.
#include "data/tokens.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace shardpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tokens = std::vector<int32_t>;

Tokens read_all(const TokenStream& stream, size_t chunk) {
  Tokens tokens(static_cast<size_t>(stream.size()));
  for (size_t at = 0; at < tokens.size(); at += chunk)
    stream.read(static_cast<int64_t>(at), std::span(tokens).subspan(at, std::min(chunk, tokens.size() - at)));
  return tokens;
}

std::string decode(const Tokens& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

template <typename Integer>
std::string raw(const std::vector<Integer>& values) {
  std::string bytes(values.size() * sizeof(Integer), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<std::string> problems(const std::vector<std::string>& paths, TokenWidth width = TokenWidth::Byte,
                                  int64_t vocabulary = 256, int64_t minimum_tokens = 1) {
  try {
    const TokenStream stream(paths, width, vocabulary, minimum_tokens);
  } catch (const InputError& error) {
    return error.problems();
  }
  return {};
}

// Text that trips readers who expect UTF-8, C strings, one kind of line break, or a last one.
std::string strange_text() {
  std::string text = "a\xFF\xFE lone \x80\xBF, cut \xE6\xBC";
  text += std::string("\0\0", 2) + "\r\n\n\r caf\xC3\xA9 \xF0\x9F\x98\x80";
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  while (text.size() < 9000) text += text;  // over several chunks and pages
  return text + "no line break at the end";
}

TEST(Text, EveryByteReadsBackWhateverTheChunk) {
  const TemporaryFolder folder;
  const std::string text = strange_text();
  const TokenStream stream({folder.write("text", text)}, TokenWidth::Byte, 256, 1);
  EXPECT_EQ(stream.size(), static_cast<int64_t>(text.size()));
  for (const size_t chunk : {size_t{1}, size_t{7}, size_t{4096}, text.size()})
    EXPECT_EQ(decode(read_all(stream, chunk)), text) << "chunk " << chunk;
}

TEST(Text, SeveralFilesAreOneStream) {
  const TemporaryFolder folder;
  const std::string text = strange_text();
  std::vector<std::string> paths;
  size_t at = 0;
  for (const size_t bytes : {size_t{1}, size_t{1}, size_t{5}, size_t{4096}, size_t{3}, text.size() - 4106}) {
    paths.push_back(folder.write("part" + std::to_string(paths.size()), text.substr(at, bytes)));
    at += bytes;
  }
  ASSERT_EQ(at, text.size());
  const TokenStream stream(paths, TokenWidth::Byte, 256, 1);
  for (const size_t chunk : {size_t{1}, size_t{7}, size_t{4096}, text.size()})
    EXPECT_EQ(decode(read_all(stream, chunk)), text) << "chunk " << chunk;
  // Every start and length around the borders.
  for (size_t first = 0; first < 12; ++first)
    for (size_t count = 0; count < 12; ++count) {
      Tokens tokens(count);
      stream.read(static_cast<int64_t>(first), tokens);
      ASSERT_EQ(decode(tokens), text.substr(first, count)) << first << " + " << count;
    }
}

TEST(Text, ASmallerVocabularyRefusesWithTheOffset) {
  const TemporaryFolder folder;
  const std::string path = folder.write("text", "abc\x7F\x80");
  EXPECT_TRUE(problems({path}, TokenWidth::Byte, 129).empty());
  EXPECT_THAT(problems({path}, TokenWidth::Byte, 128),
              ElementsAre(AllOf(HasSubstr(path), HasSubstr("token 128 at byte 4"), HasSubstr("--vocab-size 128"))));
}

TEST(Uint16, TheLargestVocabularyAndItsLargestIdWork) {
  const TemporaryFolder folder;
  const std::string path = folder.write("tokens", raw<uint16_t>({0, 65535, 5, 32768}));
  const TokenStream stream({path}, TokenWidth::Uint16, 65536, 1);
  EXPECT_THAT(read_all(stream, 3), ElementsAre(0, 65535, 5, 32768));
}

TEST(Uint16, AnIdThatReachesTheVocabularyIsRefusedWithItsOffset) {
  const TemporaryFolder folder;
  const std::string path = folder.write("tokens", raw<uint16_t>({0, 49999, 50000, 65535}));
  EXPECT_THAT(problems({path}, TokenWidth::Uint16, 50000),
              ElementsAre(AllOf(HasSubstr(path), HasSubstr("token 50000 at byte 4"),
                                HasSubstr("less than --vocab-size 50000"))));
  EXPECT_THAT(problems({path}, TokenWidth::Uint16, 65535), ElementsAre(HasSubstr("token 65535 at byte 6")));
  EXPECT_TRUE(problems({path}, TokenWidth::Uint16, 65536).empty());
}

TEST(Uint16, HalfATokenIsRefused) {
  const TemporaryFolder folder;
  EXPECT_THAT(problems({folder.write("odd", "abc")}, TokenWidth::Uint16, 65536),
              ElementsAre(AllOf(HasSubstr("found 3 bytes"), HasSubstr("uint16"), HasSubstr("a multiple of 2"))));
  EXPECT_THAT(problems({folder.write("one", "a")}, TokenWidth::Uint16, 65536), ElementsAre(HasSubstr("found 1 bytes")));
}

TEST(Uint32, IdsBeyond65535DoNotWrap) {
  const TemporaryFolder folder;
  const std::string path = folder.write("tokens", raw<uint32_t>({65541, 69999, 5}));
  const TokenStream stream({path}, TokenWidth::Uint32, 70000, 1);
  EXPECT_THAT(read_all(stream, 1), ElementsAre(65541, 69999, 5));
  EXPECT_THAT(problems({path}, TokenWidth::Uint32, 65541), ElementsAre(HasSubstr("token 65541 at byte 0")));
}

TEST(Uint32, IdsBeyondInt32AreRefusedNotNegative) {
  const TemporaryFolder folder;
  const std::string path = folder.write("tokens", raw<uint32_t>({1, 4294967295u}));
  EXPECT_THAT(problems({path}, TokenWidth::Uint32, std::numeric_limits<int32_t>::max()),
              ElementsAre(HasSubstr("token 4294967295 at byte 4")));
  for (const size_t bytes : {5u, 6u, 7u})
    EXPECT_THAT(problems({folder.write("cut", std::string(bytes, 'a'))}, TokenWidth::Uint32, 70000),
                ElementsAre(HasSubstr("a multiple of 4")));
}

TEST(Files, AllThatIsWrongIsToldAtOnceInTheirOrder) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "folder");
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string good = folder.write("good", raw<uint16_t>({1, 2}));
  EXPECT_THAT(problems({folder / "missing", folder.write("empty", ""), good, folder / "folder", pipe, good + "/below",
                        folder.write("odd", "abc"), folder.write("foreign", raw<uint16_t>({7, 9}))},
                       TokenWidth::Uint16, 9),
              ElementsAre(AllOf(HasSubstr("missing"), HasSubstr("No such file")),
                          AllOf(HasSubstr("empty"), HasSubstr("it is empty")),
                          AllOf(HasSubstr("folder"), HasSubstr("it is a folder")),
                          AllOf(HasSubstr("pipe"), HasSubstr("not a regular file")),
                          AllOf(HasSubstr("good/below"), HasSubstr("Not a directory")),
                          AllOf(HasSubstr("odd"), HasSubstr("found 3 bytes")),
                          AllOf(HasSubstr("foreign"), HasSubstr("token 9 at byte 2"))));
}

TEST(Files, AFileWithoutReadPermissionIsRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "the superuser may read anything";
  const TemporaryFolder folder;
  const std::string path = folder.write("secret", "abc");
  chmod(path.c_str(), 0);
  EXPECT_THAT(problems({path}), ElementsAre(HasSubstr("Permission denied")));
}

TEST(Files, TooFewTokensInAllAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.write("short", "12345");
  EXPECT_TRUE(problems({path, path}, TokenWidth::Byte, 256, 10).empty());
  EXPECT_THAT(problems({path, path}, TokenWidth::Byte, 256, 11),
              ElementsAre(AllOf(HasSubstr("found 10 tokens"), HasSubstr("at least 11"))));
}

TEST(Files, AFileMayBeGivenTwice) {
  const TemporaryFolder folder;
  const std::string path = folder.write("text", "ab");
  const TokenStream stream({path, path}, TokenWidth::Byte, 256, 1);
  EXPECT_EQ(decode(read_all(stream, 3)), "abab");
}

TEST(TokenStream, ReadsPastTheEndAreRefused) {
  const TemporaryFolder folder;
  const TokenStream stream({folder.write("text", "abc")}, TokenWidth::Byte, 256, 1);
  Tokens tokens(2);
  EXPECT_THROW(stream.read(2, tokens), InvariantError);
  EXPECT_THROW(stream.read(-1, tokens), InvariantError);
  EXPECT_NO_THROW(stream.read(3, std::span(tokens).first(0)));
}

TEST(TokenStream, MovesWithItsFiles) {
  const TemporaryFolder folder;
  TokenStream first({folder.write("text", "abc")}, TokenWidth::Byte, 256, 1);
  const TokenStream second = std::move(first);
  EXPECT_EQ(decode(read_all(second, 3)), "abc");
}

TEST(TokenStream, ThreadsReadAtOnce) {
  const TemporaryFolder folder;
  const std::string text = strange_text();
  const TokenStream stream({folder.write("a", text.substr(0, 100)), folder.write("b", text.substr(100))},
                           TokenWidth::Byte, 256, 1);
  std::vector<std::string> read(3);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < read.size(); ++i) threads.emplace_back([&, i] { read[i] = decode(read_all(stream, 7 + i)); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& one : read) EXPECT_EQ(one, text);
}

}  // namespace
}  // namespace shardpipe
