// TDBG_DCHECK: on in Debug builds, gone from all others.
//
// Seen to fail when: a release build evaluates the condition; a Debug build
// ignores it.

#include "base/check.h"

#include <chrono>
#include <csignal>

#include "child_process.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::Ending;

Ending EndingOf(bool condition) {
  return testing::WaitFor(testing::Fork([&] {
                            TDBG_DCHECK(condition);
                            return 7;
                          }),
                          std::chrono::seconds(60));
}

TDBG_TEST(ATrueConditionDoesNothing) { EXPECT_EQ(EndingOf(true).exit_code, 7); }

TDBG_TEST(AFalseConditionEndsADebugBuildOnly) {
  const Ending ending = EndingOf(false);
#ifdef NDEBUG
  EXPECT_EQ(ending.exit_code, 7);
#else
  EXPECT_EQ(ending.signal, SIGABRT);
#endif
}

TDBG_TEST(TheConditionIsEvaluatedInADebugBuildOnly) {
  int n_evaluations = 0;
  TDBG_DCHECK(++n_evaluations > 0);
#ifdef NDEBUG
  EXPECT_EQ(n_evaluations, 0);
#else
  EXPECT_EQ(n_evaluations, 1);
#endif
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
