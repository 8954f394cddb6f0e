#include "data/tokens.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"

namespace shardpipe {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and are read where they lie");

struct TokenStream::Files {
  struct File {
    const unsigned char* data = nullptr;
    size_t bytes = 0;
    int64_t first_token = 0;  // in the stream
    int64_t tokens = 0;
  };
  ~Files() {
    for (const File& file : files) munmap(const_cast<unsigned char*>(file.data), file.bytes);
  }
  TokenWidth width = TokenWidth::Byte;
  std::vector<File> files;
  int64_t tokens = 0;
};

namespace {

uint32_t token_at(const unsigned char* data, TokenWidth width, int64_t i) {
  switch (width) {
    case TokenWidth::Byte:
      return data[i];
    case TokenWidth::Uint16: {
      uint16_t value;
      std::memcpy(&value, data + 2 * i, sizeof value);
      return value;
    }
    case TokenWidth::Uint32: {
      uint32_t value;
      std::memcpy(&value, data + 4 * i, sizeof value);
      return value;
    }
  }
  return 0;
}

// The first token that the vocabulary does not have; nothing when every value of the width is in it.
std::optional<int64_t> first_foreign_token(const unsigned char* data, TokenWidth width, int64_t tokens,
                                           int64_t vocabulary) {
  const int64_t values = width == TokenWidth::Byte ? 256 : width == TokenWidth::Uint16 ? 65536 : int64_t{1} << 32;
  if (vocabulary >= values) return std::nullopt;
  for (int64_t i = 0; i < tokens; ++i)
    if (token_at(data, width, i) >= vocabulary) return i;
  return std::nullopt;
}

// Maps a file that is not empty; the descriptor need not stay open.
const unsigned char* map_file(const std::string& path, size_t& bytes) {
  const auto fail = [&](const std::string& what) {
    throw InputError(fmt::format("--data {}: {}; allowed: a readable file of tokens", path, what));
  };
  // O_NONBLOCK: a pipe without a writer is refused below and not waited for.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail(std::strerror(errno));
  struct stat status {};
  const bool known = fstat(descriptor, &status) == 0;
  const int error = errno;
  void* data = MAP_FAILED;
  int map_error = 0;
  if (known && S_ISREG(status.st_mode) && status.st_size > 0) {
    data = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    map_error = errno;
  }
  close(descriptor);
  if (!known) fail(std::strerror(error));
  if (S_ISDIR(status.st_mode)) fail("it is a folder");
  if (!S_ISREG(status.st_mode)) fail("it is not a regular file");
  if (status.st_size == 0) fail("it is empty");
  if (data == MAP_FAILED) fail(std::strerror(map_error));
  bytes = static_cast<size_t>(status.st_size);
  return static_cast<const unsigned char*>(data);
}

}  // namespace

TokenStream::TokenStream(const std::vector<std::string>& paths, TokenWidth width, int64_t vocabulary,
                         int64_t minimum_tokens)
    : files_(std::make_unique<Files>()) {
  files_->width = width;
  const auto token_bytes = static_cast<size_t>(width);
  std::vector<std::string> problems;
  for (const std::string& path : paths) try {
      Files::File file;
      file.data = map_file(path, file.bytes);
      file.first_token = files_->tokens;
      file.tokens = static_cast<int64_t>(file.bytes / token_bytes);
      files_->files.push_back(file);
      files_->tokens += file.tokens;
      if (file.bytes % token_bytes != 0) {
        problems.push_back(fmt::format("--data {}: found {} bytes; allowed with --data-format uint{}: a multiple of {}",
                                       path, file.bytes, 8 * token_bytes, token_bytes));
      } else if (const auto foreign = first_foreign_token(file.data, width, file.tokens, vocabulary)) {
        problems.push_back(fmt::format("--data {}: found token {} at byte {}; allowed: less than --vocab-size {}", path,
                                       token_at(file.data, width, *foreign),
                                       *foreign * static_cast<int64_t>(token_bytes), vocabulary));
      }
    } catch (const InputError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  if (problems.empty() && files_->tokens < minimum_tokens)
    problems.push_back(
        fmt::format("--data {}: found {} tokens; allowed: at least {}, one window of --seq-len and its last target",
                    fmt::join(paths, ","), files_->tokens, minimum_tokens));
  if (!problems.empty()) throw InputError(problems);
}

TokenStream::~TokenStream() = default;
TokenStream::TokenStream(TokenStream&&) noexcept = default;

int64_t TokenStream::size() const { return files_->tokens; }

void TokenStream::read(int64_t first, std::span<int32_t> tokens) const {
  const auto& files = files_->files;
  check_invariant(first >= 0 && first + static_cast<int64_t>(tokens.size()) <= files_->tokens,
                  "tokens {} to {} of a stream of {}", first, first + static_cast<int64_t>(tokens.size()),
                  files_->tokens);
  auto file = std::ranges::upper_bound(files, first, {}, &Files::File::first_token);
  for (size_t done = 0; done < tokens.size(); ++file) {
    const Files::File& part = *std::prev(file);
    const int64_t begin = first + static_cast<int64_t>(done) - part.first_token;
    const auto count = std::min(tokens.size() - done, static_cast<size_t>(std::max<int64_t>(0, part.tokens - begin)));
    for (size_t i = 0; i < count; ++i)
      tokens[done + i] = static_cast<int32_t>(token_at(part.data, files_->width, begin + static_cast<int64_t>(i)));
    done += count;
  }
}

}  // namespace shardpipe
