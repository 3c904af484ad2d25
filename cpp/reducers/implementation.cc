#include "reducers/implementation.h"

#include <cstdlib>
#include <string>

namespace tdbg {
namespace {

bool Always() { return true; }

#ifdef TDBG_HAVE_AVX2
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") != 0 &&
         __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("f16c") != 0;
}
#endif

#ifdef TDBG_HAVE_AVX512
bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("f16c") != 0;
}
#endif

#ifdef TDBG_HAVE_AVX512BF16
bool HasAvx512BFloat16() {
  return HasAvx512() && __builtin_cpu_supports("avx512bf16") != 0;
}
#endif

// TDBG_HAVE_* come from the build (cmake/TdbgInstructionSets.cmake).
constexpr Implementation kImplementations[] = {
    {"portable", &Always, &AccumulatePortable, &AccumulateDifferencePortable,
     &AccumulateAndCopyPortable, &SubtractPortable, &CountBinsPortable,
     &CountRunsPortable, &CountColumnsPortable},
#ifdef TDBG_HAVE_AVX2
    {"avx2", &HasAvx2, &AccumulateAvx2, &AccumulateDifferenceAvx2,
     &AccumulateAndCopyAvx2, &SubtractAvx2, &CountBinsAvx2, &CountRunsAvx2,
     &CountColumnsAvx2},
#endif
#ifdef TDBG_HAVE_AVX512
    {"avx512", &HasAvx512, &AccumulateAvx512, &AccumulateDifferenceAvx512,
     &AccumulateAndCopyAvx512, &SubtractAvx512, &CountBinsAvx512,
     &CountRunsAvx512, &CountColumnsAvx512},
#endif
#ifdef TDBG_HAVE_AVX512BF16
    {"avx512bf16", &HasAvx512BFloat16, &AccumulateAvx512BFloat16,
     &AccumulateDifferenceAvx512BFloat16, &AccumulateAndCopyAvx512,
     &SubtractAvx512, &CountBinsAvx512, &CountRunsAvx512, &CountColumnsAvx512},
#endif
};

std::string SupportedNames() {
  std::string names;
  for (const Implementation& candidate : kImplementations) {
    if (!candidate.supported()) continue;
    if (!names.empty()) names += ", ";
    names += candidate.name;
  }
  return names;
}

}  // namespace

std::span<const Implementation> Implementations() { return kImplementations; }

Result<const Implementation*> SelectImplementation(std::string_view forced) {
  const Implementation* best = nullptr;
  for (const Implementation& candidate : kImplementations) {
    if (!forced.empty() && candidate.name != forced) continue;
    if (candidate.supported()) {
      best = &candidate;
    } else if (!forced.empty()) {
      return Status::Unsupported(
          "TDBG_FORCE_IMPLEMENTATION=" + std::string(forced) +
          " is not supported by this processor; use " +
          "one of: " + SupportedNames());
    }
  }
  if (best != nullptr) return best;
  return Status::InvalidArgument(
      "TDBG_FORCE_IMPLEMENTATION=" + std::string(forced) +
      " names no implementation; use one of: " + SupportedNames());
}

Result<const Implementation*> ActiveImplementation() {
  static const Result<const Implementation*> active = [] {
    const char* forced = std::getenv("TDBG_FORCE_IMPLEMENTATION");
    return SelectImplementation(forced == nullptr ? "" : forced);
  }();
  return active;
}

const Implementation& ImplementationInUse() {
  static const Implementation* const in_use = [] {
    const Result<const Implementation*> active = ActiveImplementation();
    return active.ok() ? active.value() : &kImplementations[0];
  }();
  return *in_use;
}

}  // namespace tdbg
