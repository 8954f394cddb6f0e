// Every schedule that a generator makes, for tests that hold for all of them; a new generator is among them by itself.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "schedules/schedule.h"
#include "test_paths.h"

namespace shardpipe {

inline void for_each_schedule(std::span<const uint16_t> micro_batches, uint16_t most_ranks,
                              const std::function<void(const Schedule&)>& visit) {
  for (const Generator& generator : generators())
    for (uint16_t chunks = generator.fewest_chunks; chunks <= std::min<uint16_t>(generator.most_chunks, 4); ++chunks)
      for (uint16_t ranks = 1; ranks <= most_ranks; ++ranks)
        for (const uint16_t m : micro_batches) {
          SCOPED_TRACE(fmt::format("{}, {} ranks, {} micro-batches, {} chunks", generator.name, ranks, m, chunks));
          visit(make_schedule(generator.name, {.ranks = ranks, .micro_batches = m, .chunks_per_rank = chunks}));
        }
}

inline constexpr uint16_t few_micro_batches[] = {1, 2, 3, 5, 8, 13, 32};
inline const std::vector<uint16_t> micro_batches_to_32 = [] {
  std::vector<uint16_t> all;
  for (uint16_t m = 1; m <= 32; ++m) all.push_back(m);
  return all;
}();

// PyTorch's own, kept for its tests.
inline const std::vector<std::string> torch_files{"dualpipev_4rank_10mb", "zb1p_2rank_2stagep_comms",
                                                  "zb1p_2rank_2stagep_compute"};
inline std::string content_of_torch_file(const std::string& name) {
  std::ifstream file(std::string(TEST_DATA_DIR) + "/schedules/torch/" + name + ".csv", std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace shardpipe
