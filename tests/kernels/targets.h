// The vector kernels are compiled for several instruction sets, of which a process runs one: these let a test run all
// that this machine has.
#pragma once
#include <gtest/gtest.h>
#include <hwy/highway.h>

namespace shardpipe::kernels::test {

// body() once under each instruction set, in turn; the best one is chosen again afterwards.
template <class Body>
void under_each_target(const Body& body) {
  for (int64_t targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    body();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

}  // namespace shardpipe::kernels::test
