#include "program/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "program/cases.h"
#include "test_paths.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Text, ParsingWhatWasPrintedGivesTheProgram) {
  int cases = 0;
  for_each_case(
      [&](const Case& c) {
        if (testing::Test::HasFailure()) return;
        const Program program = compile(c.shape());
        const std::string text = print(program);
        const Program parsed = parse_program(text);
        EXPECT_EQ(print(parsed), text) << c.name;
        EXPECT_TRUE(parsed == program) << c.name;
        ++cases;
      },
      11);
  EXPECT_GT(cases, 250);
}

std::string error_of(const std::string& text) {
  try {
    parse_program(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

constexpr const char* small = R"(program
group 0 forward 0>1 : 0 1
rank 0 arena 128
buffer activation b1 m0 : 64 @ 0
buffer parameters g0 resident : 64 @ 64
)";

TEST(Text, ErrorsNameTheLineWhatWasFoundAndWhatIsAllowed) {
  const std::string head = small;
  EXPECT_THAT(error_of(""), HasSubstr("found nothing; allowed: a line 'program'"));
  EXPECT_THAT(error_of("progam\n"), AllOf(HasSubstr("line 1"), HasSubstr("'progam'"), HasSubstr("'program'")));
  EXPECT_THAT(error_of(head + "compute F b1 m0 parameters g0 -> activation b2 m0\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("activation b2 m0"), HasSubstr("a buffer of this rank")));
  EXPECT_THAT(error_of(head + "network F b1 m0 -> activation b1 m0\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("network"), HasSubstr("compute"), HasSubstr("gather")));
  EXPECT_THAT(error_of(head + "compute dance b1 m0 -> activation b1 m0\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("dance"), HasSubstr("optimizer-step")));
  EXPECT_THAT(error_of(head + "compute F b1 m0 parameters g0 activation b1 m0\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("'->'")));
  EXPECT_THAT(error_of(head + "compute F b1 m0 parameters g0 -> activation b1 m0 waits soon\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("soon"), HasSubstr("a number")));
  EXPECT_THAT(error_of(head + "compute F b1 m0 parameters g0 -> activation b1 m0 with 0\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("'#'")));
  EXPECT_THAT(error_of(head + "compute F b1 m0 parameters g0 -> activation b1 m0 then\n"), HasSubstr("line 6"));
  EXPECT_THAT(error_of(head + "compute F b99999 m0 -> activation b1 m0\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("99999"), HasSubstr("a number in range")));
  EXPECT_THAT(error_of(head + "rank 7 arena 1\n"), AllOf(HasSubstr("line 6"), HasSubstr("rank 1")));
  EXPECT_THAT(error_of(head + "buffer saved b1 m0 : many @ 0\n"), AllOf(HasSubstr("line 6"), HasSubstr("many")));
  EXPECT_THAT(error_of(head + "buffer saved b1 m0 : 4 @ 0 0\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("end of the line")));
  EXPECT_THAT(error_of(head + "rank 1 arena 1 2\n"), AllOf(HasSubstr("line 6"), HasSubstr("end of the line")));
  EXPECT_THAT(error_of("program of mine\n"), AllOf(HasSubstr("line 1"), HasSubstr("end of the line")));
  EXPECT_THAT(error_of("program\ncompute F b1 m0 -> loss m0\n"), AllOf(HasSubstr("line 2"), HasSubstr("'rank'")));
  EXPECT_THAT(error_of("program\ngroup 0 forward 0>1 : 0 one\n"), AllOf(HasSubstr("line 2"), HasSubstr("one")));
  EXPECT_THAT(error_of(head + "buffer activation b1 m0 : 64 @ 64\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("activation b1 m0"), HasSubstr("each buffer once")));
}

// A line cut short anywhere is an error of that line or another program, never a crash.
TEST(Text, AnyPrefixIsParsedOrRefused) {
  const Model model = tiny_model(1, true);
  const std::string text = print(compile(step_shape(model, tiny_layout("1f1b", 2, 2, 3, ReduceEvery::Micro), 2)));
  int refused = 0;
  for (size_t length = 0; length < text.size(); ++length) {
    const std::string error = error_of(text.substr(0, length));
    if (error == "no error") continue;
    ++refused;
    EXPECT_THAT(error, HasSubstr("program text"));
  }
  EXPECT_GT(refused, 1000);
}

// Golden texts: SHARDPIPE_UPDATE_GOLDEN=1 writes them anew; read the difference before you commit it.
struct Golden {
  const char* file;
  Layout layout;
  int64_t layers = 2;
  bool tied = true;
};
void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.file; }

// Two replicas of two micro-batches. The stages are given, so that another balance does not change the texts.
Layout two_by_two(const char* schedule, int64_t pp, int zero, ReduceEvery reduce_every) {
  Layout layout = tiny_layout(schedule, pp, 2, zero, reduce_every);
  layout.stages = pp == 2 ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{4};
  return layout;
}

Layout recomputing(const char* rule, Layout layout) {
  layout.recompute = rule;
  return layout;
}

// Four replicas, of which two and two share.
Layout in_copies(int64_t replicate, Layout layout) {
  layout.global_batch_size *= 2;
  layout.dp = 4;
  layout.replicate = replicate;
  return layout;
}

// All that can be, in pieces that leave a rest.
Layout offloading(Layout layout) {
  layout.offload = "optimizer,params,activations";
  layout.offload_piece = 100;
  return layout;
}

Layout reproducible(Layout layout) {
  layout.reproducible = true;
  return layout;
}

// One layer, two stages, one micro-batch: the program that docs/program.md explains.
Layout smallest() {
  Layout layout = tiny_layout("1f1b", 2, 1, 3, ReduceEvery::Micro);
  layout.stages = {1, 2};
  return layout;
}

class GoldenText : public testing::TestWithParam<Golden> {};

TEST_P(GoldenText, IsWhatIsCompiled) {
  const Model model = tiny_model(GetParam().layers, GetParam().tied);
  const std::string text = print(compile(step_shape(model, GetParam().layout, 2)), Detail::Actions);
  const std::filesystem::path path = std::filesystem::path(TEST_DATA_DIR) / "programs" / GetParam().file;
  if (std::getenv("SHARDPIPE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << text;
    GTEST_SKIP() << "wrote " << path;
  }
  std::ifstream in(path);
  ASSERT_TRUE(in.good()) << "no file " << path << ": SHARDPIPE_UPDATE_GOLDEN=1 makes it";
  std::stringstream golden;
  golden << in.rdbuf();
  const std::vector<std::string> expected = lines_of(golden.str()), found = lines_of(text);
  for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
    const std::string want = i < expected.size() ? expected[i] : "(the end)",
                      have = i < found.size() ? found[i] : "(the end)";
    ASSERT_EQ(want, have) << path.filename() << ", line " << i + 1 << " differs first; " << expected.size()
                          << " lines before, " << found.size()
                          << " now. If the change is meant: SHARDPIPE_UPDATE_GOLDEN=1";
  }
}

TEST(Text, TheProgramInTheDocumentationIsReal) {
  const Model model = tiny_model(1, false);
  const std::string text = print(compile(step_shape(model, smallest(), 2)), Detail::Actions);
  std::ifstream in(std::filesystem::path(TEST_DATA_DIR) / ".." / "docs" / "program.md");
  ASSERT_TRUE(in.good());
  std::stringstream page;
  page << in.rdbuf();
  EXPECT_THAT(page.str(), HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(
    Programs, GoldenText,
    testing::Values(
        Golden{"smallest.txt", smallest(), 1, false},
        Golden{"1f1b_pp2_zero0.txt", two_by_two("1f1b", 2, 0, ReduceEvery::Step)},
        Golden{"1f1b_pp2_zero3_micro.txt", two_by_two("1f1b", 2, 3, ReduceEvery::Micro)},
        Golden{"1f1b_pp1_zero1_step.txt", two_by_two("1f1b", 1, 1, ReduceEvery::Step)},
        Golden{"gpipe_pp2_zero2.txt", two_by_two("gpipe", 2, 2, ReduceEvery::Micro)},
        Golden{"1f1b_pp2_zero3_recompute_full.txt", recomputing("full", two_by_two("1f1b", 2, 3, ReduceEvery::Micro))},
        Golden{"1f1b_pp2_zero3_two_copies.txt", in_copies(2, two_by_two("1f1b", 2, 3, ReduceEvery::Micro))},
        Golden{"zb-h1_pp2_recompute_selective.txt",
               recomputing("selective", two_by_two("zb-h1", 2, 0, ReduceEvery::Step))},
        Golden{"1f1b_pp2_zero3_reproducible.txt", reproducible(two_by_two("1f1b", 2, 3, ReduceEvery::Micro))},
        Golden{"1f1b_pp2_zero3_offload.txt", offloading(two_by_two("1f1b", 2, 3, ReduceEvery::Micro))}),
    [](const auto& parameter) {
      const std::string file = parameter.param.file;
      std::string name = file.substr(0, file.find('.'));
      std::ranges::replace(name, '-', '_');
      return name;
    });

}  // namespace
}  // namespace shardpipe
