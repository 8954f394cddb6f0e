// Token files, memory-mapped: text (a token a byte) or raw little-endian uint16 / uint32, one or more files read as one
// stream. A file must not shrink while it is mapped.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace shardpipe {

enum class TokenWidth : uint8_t { Byte = 1, Uint16 = 2, Uint32 = 4 };

// Immutable after opening; reading is thread-safe.
class TokenStream {
 public:
  // Maps every file and checks every token against the vocabulary once. InputError, all problems at once: a file that
  // is missing, unreadable, a folder, empty, of a size that is no multiple of the width, or that holds a token >=
  // vocabulary (with the byte offset of the first); in all fewer than `minimum_tokens`. Where every value of the width
  // is in the vocabulary (text with 256 or more), no page is read. 1 <= vocabulary <= 2^31.
  TokenStream(const std::vector<std::string>& paths, TokenWidth width, int64_t vocabulary, int64_t minimum_tokens);
  ~TokenStream();
  TokenStream(TokenStream&&) noexcept;

  int64_t size() const;                                       // tokens
  void read(int64_t first, std::span<int32_t> tokens) const;  // requires first + tokens.size() <= size()

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

}  // namespace shardpipe
