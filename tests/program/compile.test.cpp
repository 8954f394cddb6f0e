#include "program/compile.h"

#include <gtest/gtest.h>

#include "program/cases.h"
#include "program/check.h"

namespace shardpipe {
namespace {

// compile() throws with the first finding; here all of them are told, with the layout.
void expect_sound(const StepShape& shape, const std::string& name) {
  Program program;
  for (const CompilerPass& pass : passes()) program = pass.run(std::move(program), shape);
  for (const Finding& finding : check(program)) ADD_FAILURE() << name << ": " << finding.rule << ": " << finding.where;
  EXPECT_NO_THROW(compile(shape)) << name;
}

TEST(Compile, EveryLayoutOfTheGridIsSound) {
  int cases = 0;
  for_each_case([&](const Case& c) {
    if (testing::Test::HasFailure()) return;  // the smallest layout that shows it is enough
    expect_sound(c.shape(), c.name);
    ++cases;
  });
  EXPECT_EQ(cases, 3000);
}

}  // namespace
}  // namespace shardpipe
