// Which sanitizer a test was compiled with.  Under one everything is several
// times slower, so that a test repeats less often there: what it repeats is
// there for chance or for every value, which the plain build covers.

#pragma once

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

}  // namespace tdbg::testing
