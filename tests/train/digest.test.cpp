#include "train/digest.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "base/error.h"
#include "equivalence/course.h"

namespace shardpipe {
namespace {

std::string digest_of(const Model& model, const Weights& weights) {
  std::map<std::string, Hash> hashes;
  for (const auto& [tensor, values] : weights) hashes[tensor] = hash_tensor(values);
  return params_digest(model, hashes);
}

class Digest : public testing::Test {
 protected:
  Digest() {
    config_.model.hidden = 8;
    config_.model.ffn = 16;
    config_.model.layers = 1;
    model_ = make_model(config_.model);
    weights_ = initial_weights(config_);
  }
  RunConfig config_ = tiny_run(tiny_gpt2(), tiny_layout(1, 1, 0, 1, ReduceEvery::Step));
  Model model_;
  Weights weights_;
};

TEST_F(Digest, ChangesWithAnyBitOfAnyElement) {
  std::set<std::string> digests{digest_of(model_, weights_)};
  size_t changes = 1;
  for (auto& [tensor, values] : weights_)
    for (size_t element = 0; element < values.size(); element += 7)
      for (const uint32_t bit : {0u, 13u, 31u}) {
        const float kept = values[element];
        values[element] = std::bit_cast<float>(std::bit_cast<uint32_t>(kept) ^ (1u << bit));
        digests.insert(digest_of(model_, weights_));
        values[element] = kept;
        ++changes;
      }
  EXPECT_EQ(digests.size(), changes);
}

TEST_F(Digest, DistinguishesEqualTensorsThatChangePlaces) {
  const std::string before = digest_of(model_, weights_);
  std::swap(weights_.at("h.0.ln_1.weight"), weights_.at("h.0.ln_1.bias"));
  EXPECT_NE(digest_of(model_, weights_), before);
}

TEST_F(Digest, Is32HexDigitsAndRepeats) {
  const std::string digest = digest_of(model_, weights_);
  EXPECT_EQ(digest.size(), 32u);
  EXPECT_EQ(digest.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(digest, digest_of(model_, initial_weights(config_)));
}

TEST_F(Digest, RefusesAMissingTensor) {
  weights_.erase("ln_f.bias");
  EXPECT_THROW(digest_of(model_, weights_), InvariantError);
}

// Tensors are hashed by whichever rank holds them.
TEST_F(Digest, DoesNotDependOnWhoHoldsATensor) {
  config_.layout = tiny_layout(3, 2, 3, 1, ReduceEvery::Step);
  config_.optimizer.lr = config_.optimizer.min_lr = 0;
  EXPECT_EQ(train(config_).digest, digest_of(model_, weights_));
}

}  // namespace
}  // namespace shardpipe
