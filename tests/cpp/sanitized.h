// Which sanitizer a test was compiled with, and whether it repeats less often.
// Under a sanitizer everything is several times slower, and `make test` has
// minutes: what a test repeats is there for chance or for every value, which
// the plain build covers when it is not in a hurry (`make test-all`).

#pragma once

#include <cstdlib>

namespace tdbg::testing {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kHasAddressSanitizer = true;
#else
inline constexpr bool kHasAddressSanitizer = false;
#endif

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kHasThreadSanitizer = true;
#else
inline constexpr bool kHasThreadSanitizer = false;
#endif

inline constexpr bool kIsSanitized =
    kHasAddressSanitizer || kHasThreadSanitizer;

inline bool RepeatsLess() {
  return kIsSanitized || std::getenv("TDBG_TEST_QUICK") != nullptr;
}

}  // namespace tdbg::testing
