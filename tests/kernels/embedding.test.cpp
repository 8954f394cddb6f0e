#include <gmock/gmock.h>
#include <kernels/cpu/embedding.h>

#include <stdexcept>

#include "kernels/check.h"

namespace shardpipe::kernels::test {
namespace {

constexpr int64_t batch = 2, sequence = 3, maximum_sequence = 5, vocabulary = 7;
const std::vector<int32_t> tokens = {0, 6, 2, 2, 6, 2};

class Embedding : public testing::TestWithParam<int64_t> {
 protected:
  const int64_t width = GetParam();
  const Floats table = random_floats(vocabulary * width, 1), positions = random_floats(maximum_sequence * width, 2),
               dout = random_floats(batch * sequence * width, 3);
};

TEST_P(Embedding, ForwardLooksUpAndAddsPositions) {
  Floats with(dout.size()), without(dout.size());
  embedding_forward(tokens.data(), table.data(), positions.data(), with.data(), batch, sequence, width, vocabulary);
  embedding_forward(tokens.data(), table.data(), nullptr, without.data(), batch, sequence, width, vocabulary);
  for (size_t place = 0; place < tokens.size(); ++place) {
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
      const size_t at = place * static_cast<size_t>(width) + i;
      const float row = table[static_cast<size_t>(tokens[place]) * static_cast<size_t>(width) + i];
      EXPECT_EQ(without[at], row);
      EXPECT_EQ(with[at], row + positions[place % sequence * static_cast<size_t>(width) + i]);
    }
  }
}

TEST_P(Embedding, GradientsAreSumsOfRows) {
  Doubles dtable(table.size()), dpositions(positions.size());
  for (size_t place = 0; place < tokens.size(); ++place) {
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
      const double value = double{dout[place * static_cast<size_t>(width) + i]};
      dtable[static_cast<size_t>(tokens[place]) * static_cast<size_t>(width) + i] += value;
      dpositions[place % sequence * static_cast<size_t>(width) + i] += value;
    }
  }
  Floats found_table = table, found_positions = positions;  // overwritten, whatever was there
  embedding_backward_weight(tokens.data(), dout.data(), found_table.data(), found_positions.data(), batch, sequence,
                            maximum_sequence, width, vocabulary, false);
  expect_close(found_table, dtable, 1e-6, "dtable");
  expect_close(found_positions, dpositions, 1e-6, "dpositions");

  found_table = table;
  found_positions = positions;
  embedding_backward_weight(tokens.data(), dout.data(), found_table.data(), found_positions.data(), batch, sequence,
                            maximum_sequence, width, vocabulary, true);
  for (size_t i = 0; i < table.size(); ++i) dtable[i] += double{table[i]};
  for (size_t i = 0; i < positions.size(); ++i) dpositions[i] += double{positions[i]};
  expect_close(found_table, dtable, 1e-6, "dtable, added");
  expect_close(found_positions, dpositions, 1e-6, "dpositions, added");

  Floats without_positions = table;
  embedding_backward_weight(tokens.data(), dout.data(), without_positions.data(), nullptr, batch, sequence,
                            maximum_sequence, width, vocabulary, true);
  EXPECT_TRUE(same_bits(without_positions, found_table));
}

INSTANTIATE_TEST_SUITE_P(Widths, Embedding, testing::Values(1, 3, 17, 65), testing::PrintToStringParamName());

TEST(EmbeddingTokens, OutsideTheVocabularyAreRefusedWithTheirPlace) {
  const Floats table(vocabulary * 4, 1.0f);
  Floats out(6 * 4, 5.0f), dtable = table;
  for (const int32_t wrong : {-1, 7, 1 << 30}) {
    std::vector<int32_t> bad = tokens;
    bad[4] = wrong;
    try {
      embedding_forward(bad.data(), table.data(), nullptr, out.data(), batch, sequence, 4, vocabulary);
      ADD_FAILURE() << "token " << wrong << " was accepted";
    } catch (const std::out_of_range& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("token " + std::to_string(wrong) + " at place 4"));
      EXPECT_THAT(error.what(), testing::HasSubstr("0 … 6"));
    }
    EXPECT_THROW(embedding_backward_weight(bad.data(), out.data(), dtable.data(), nullptr, batch, sequence, sequence, 4,
                                           vocabulary, false),
                 std::out_of_range);
  }
  EXPECT_EQ(out, Floats(6 * 4, 5.0f)) << "nothing is written";
  EXPECT_EQ(dtable, table);
}

}  // namespace
}  // namespace shardpipe::kernels::test
