#include "schedules/schedule.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace shardpipe {

std::span<const Generator> generators() {
  static constexpr std::array table{
      Generator{"gpipe", "all forwards, then all backwards", 1, 1, 1, gpipe},
      Generator{"1f1b", "one forward, one backward: activations of at most p micro-batches", 1, 1, 1,
                one_forward_one_backward},
      Generator{"interleaved", "1F1B over several chunks a rank: 1/v of the bubble, v times the messages", 1, 64, 2,
                interleaved},
      Generator{"looped-bfs", "several chunks a rank, each passed by all micro-batches before the next", 1, 64, 2,
                looped_bfs},
      Generator{"zb-h1", "split backwards: a third of 1F1B's bubble in its memory", 1, 1, 1, zb_h1},
      Generator{"zb-h2", "split backwards: no bubble, in twice the memory of 1F1B", 1, 1, 1, zb_h2},
      Generator{"zb-v", "two chunks a rank in a V, split backwards: no bubble in the memory of 1F1B", 2, 2, 2, zb_v},
      Generator{"v-half", "as zb-v in half the memory: half of 1F1B's bubble", 2, 2, 2, v_half},
      Generator{"v-min", "as zb-v in a third of the memory: two thirds of 1F1B's bubble", 2, 2, 2, v_min},
      Generator{"dualpipe-v", "forwards that run together with backwards, over two chunks a rank in a V", 2, 2, 2,
                dualpipe_v},
  };
  return table;
}

const Generator* find_generator(std::string_view name) {
  const auto all = generators();
  const auto found = std::ranges::find(all, name, &Generator::name);
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Generator& generator : generators()) names.emplace_back(generator.name);
  return names;
}

Schedule make_schedule(std::string_view name, ScheduleRequest request) {
  check_invariant(request.ranks >= 1 && request.micro_batches >= 1,
                  "a schedule needs a rank and a micro-batch: {} ranks, {} micro-batches", request.ranks,
                  request.micro_batches);
  const Generator* generator = find_generator(name);
  check_invariant(generator != nullptr, "no schedule is called '{}'", name);
  if (request.chunks_per_rank == 0) request.chunks_per_rank = generator->usual_chunks;
  check_invariant(
      generator->fewest_chunks <= request.chunks_per_rank && request.chunks_per_rank <= generator->most_chunks,
      "{} takes {} to {} chunks a rank, not {}", name, generator->fewest_chunks, generator->most_chunks,
      request.chunks_per_rank);
  return generator->make(request);
}

char letter(Pass pass) {
  constexpr std::string_view letters = "FBIW";
  return letters[static_cast<size_t>(pass)];
}

std::string to_string(const Cell& cell) {
  return fmt::format("{}{}{}", cell.chunk, letter(cell.pass), cell.micro_batch);
}

}  // namespace shardpipe
