#include "base/check.h"

#ifndef NDEBUG

#include <cstdio>
#include <cstdlib>

namespace tdbg {

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: TDBG_DCHECK(%s) failed\n", file, line,
               condition);
  std::abort();
}

}  // namespace tdbg

#endif
