#include "kernels/cpu/embedding.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/dispatch.h"

namespace shardpipe::kernels {

static void check_tokens(const int32_t* tokens, int64_t count, int64_t vocabulary) {
  for (int64_t place = 0; place < count; ++place) {
    if (tokens[place] >= 0 && tokens[place] < vocabulary) continue;
    throw std::out_of_range(
        fmt::format("token {} at place {} is not in the vocabulary: 0 … {}", tokens[place], place, vocabulary - 1));
  }
}

template <Element T>
void embedding_forward(const int32_t* tokens, const T* table, const std::type_identity_t<T>* positions, T* out,
                       int64_t batch, int64_t sequence, int64_t width, int64_t vocabulary) {
  check_tokens(tokens, batch * sequence, vocabulary);
  for (int64_t place = 0; place < batch * sequence; ++place) {
    T* row = out + place * width;
    std::copy_n(table + tokens[place] * width, width, row);
    if (positions) add(positions + place % sequence * width, row, width);
  }
}

template <Element T>
void embedding_backward_weight(const int32_t* tokens, const T* dout, float* dtable, float* dpositions, int64_t batch,
                               int64_t sequence, int64_t maximum_sequence, int64_t width, int64_t vocabulary,
                               bool accumulate) {
  check_tokens(tokens, batch * sequence, vocabulary);
  if (!accumulate) {
    std::fill_n(dtable, vocabulary * width, 0.0f);
    if (dpositions) std::fill_n(dpositions, maximum_sequence * width, 0.0f);
  }
  for (int64_t place = 0; place < batch * sequence; ++place) {
    add_to_sum(dout + place * width, dtable + tokens[place] * width, width);
    if (dpositions) add_to_sum(dout + place * width, dpositions + place % sequence * width, width);
  }
}

#define SHARDPIPE_INSTANCES(T)                                                                                 \
  template void embedding_forward(const int32_t*, const T*, const T*, T*, int64_t, int64_t, int64_t, int64_t); \
  template void embedding_backward_weight(const int32_t*, const T*, float*, float*, int64_t, int64_t, int64_t, \
                                          int64_t, int64_t, bool)
SHARDPIPE_FOR_EACH_ELEMENT(SHARDPIPE_INSTANCES);

}  // namespace shardpipe::kernels
