// One table for each type of element, where Highway's HWY_EXPORT has one for each function: a kernel is written once as
// a template over the type of its elements, and SHARDPIPE_EXPORT makes the tables from which
// SHARDPIPE_DISPATCH(kernel, type) takes this processor's instance.
#pragma once
#include <hwy/highway.h>

#if HWY_IDE || ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0)  // one instruction set only

#define SHARDPIPE_EXPORT(kernel) static_assert(true)
#define SHARDPIPE_DISPATCH(kernel, type) HWY_STATIC_DISPATCH(kernel<type>)

#else

// The first entry stands until this processor's targets are known; it finds them, and calls its successor.
#define SHARDPIPE_EXPORT(kernel)                                                                      \
  template <Element T>                                                                                \
  decltype(&HWY_STATIC_DISPATCH(kernel<T>)) const kernel##_by_target[HWY_MAX_DYNAMIC_TARGETS + 2] = { \
      &decltype(hwy::DeduceFunctionCache(                                                             \
          &HWY_STATIC_DISPATCH(kernel<T>)))::template ChooseAndCall<kernel##_by_target<T>>,           \
      HWY_CHOOSE_TARGET_LIST(kernel<T>), HWY_CHOOSE_FALLBACK(kernel<T>)}
#define SHARDPIPE_DISPATCH(kernel, type) (*(kernel##_by_target<type>[hwy::GetChosenTarget().GetIndex()]))

#endif

// Explicit instances of what a file's macro `instances(type)` names.
#define SHARDPIPE_FOR_EACH_ELEMENT(instances) \
  instances(float);                           \
  instances(BFloat16);                        \
  instances(Float16)
