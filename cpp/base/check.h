// TDBG_DCHECK(condition) ends the process, with the condition and its place on
// stderr, if a caller broke what a header REQUIRES.  It is compiled out, and
// the condition is not evaluated, where NDEBUG is defined: in every build but
// Debug (which the sanitizer presets are).  Nothing that comes from a file or
// from Python may be checked by it: that is what Status is for.
//
// Thread safety: safe from any thread.

#pragma once

#ifdef NDEBUG
#define TDBG_DCHECK(condition) static_cast<void>(false && (condition))
#else

namespace tdbg {

[[noreturn]] void CheckFailed(const char* condition, const char* file,
                              int line);

}  // namespace tdbg

#define TDBG_DCHECK(condition) \
  static_cast<void>(           \
      (condition) ||           \
      (::tdbg::CheckFailed(#condition, __FILE__, __LINE__), false))
#endif
