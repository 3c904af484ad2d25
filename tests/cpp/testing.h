// A test harness of one header: named tests, checks that go on, an exit code.
//
// The tests must build on a machine that reaches nothing but the Python package
// index, and no framework for C++ tests is to be had there.
//
//   TDBG_TEST(EmptyInputHasNoFiniteElements) { EXPECT_EQ(s.finite(), 0u); }
//   int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
//
// `program SUBSTRING` runs the tests whose names contain it.  A run that finds
// no test to run fails.

#pragma once

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tdbg::testing {

struct Test {
  const char* name;
  std::function<void()> body;
};

inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

inline int& Failures() {
  static int failures = 0;
  return failures;
}

struct Registration {
  Registration(const char* name, std::function<void()> body) {
    Tests().push_back({name, std::move(body)});
  }
};

template <typename T>
[[gnu::noinline]] std::string Show(const T& value) {
  if constexpr (requires(std::ostringstream& s) { s << value; }) {
    std::ostringstream text;
    text.precision(17);
    text << value;
    return text.str();
  } else {
    return "(a value that cannot be printed)";
  }
}

template <typename T>
std::string Message(const T& outcome) {
  if constexpr (requires { outcome.message(); }) {
    return outcome.message();
  } else {
    return outcome.status().message();
  }
}

// What follows is not inlined: there are thousands of checks, and a failed one
// compiled into each would be most of what the tests take to compile.
[[gnu::cold, gnu::noinline]] inline void Fail(const char* file, int line,
                                              const char* what) {
  ++Failures();
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
}

inline void Fail(const char* file, int line, const std::string& what) {
  Fail(file, line, what.c_str());
}

template <typename A, typename B>
[[gnu::cold, gnu::noinline]] void FailPair(const char* file, int line,
                                           const char* what, const A& a,
                                           const B& b) {
  Fail(file, line, what + Show(a) + " and " + Show(b));
}

template <typename T>
[[gnu::cold, gnu::noinline]] void FailOutcome(const char* file, int line,
                                              const char* what,
                                              const T& outcome) {
  Fail(file, line, what + Message(outcome));
}

inline int Run(int argc, char** argv) {
  const char* filter = argc > 1 ? argv[1] : "";
  int n_run = 0;
  int n_failed = 0;
  for (const Test& test : Tests()) {
    if (std::strstr(test.name, filter) == nullptr) continue;
    const int before = Failures();
    test.body();
    ++n_run;
    const bool failed = Failures() != before;
    n_failed += failed ? 1 : 0;
    std::printf("%s %s\n", failed ? "FAILED" : "ok    ", test.name);
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", n_run - n_failed, n_failed);
  return n_failed == 0 && n_run > 0 ? 0 : 1;
}

}  // namespace tdbg::testing

#define TDBG_TEST(name)                                                  \
  static void name();                                                    \
  static const ::tdbg::testing::Registration registration_##name{#name,  \
                                                                 &name}; \
  static void name()

#define EXPECT_TRUE(condition)                                            \
  do {                                                                    \
    if (!(condition)) {                                                   \
      ::tdbg::testing::Fail(__FILE__, __LINE__, "not true: " #condition); \
    }                                                                     \
  } while (false)

#define EXPECT_FALSE(condition) EXPECT_TRUE(!(condition))

// Called as a function, so that temporaries in `a` and `b` live long enough for
// references into them.
#define TDBG_EXPECT_RELATION(a, b, relation)                            \
  ([](const auto& expect_a, const auto& expect_b) {                     \
    if (!(expect_a relation expect_b)) {                                \
      ::tdbg::testing::FailPair(__FILE__, __LINE__,                     \
                                #a " " #relation " " #b ": ", expect_a, \
                                expect_b);                              \
    }                                                                   \
  }((a), (b)))

#define EXPECT_EQ(a, b) TDBG_EXPECT_RELATION(a, b, ==)
#define EXPECT_NE(a, b) TDBG_EXPECT_RELATION(a, b, !=)
#define EXPECT_LT(a, b) TDBG_EXPECT_RELATION(a, b, <)
#define EXPECT_LE(a, b) TDBG_EXPECT_RELATION(a, b, <=)
#define EXPECT_GT(a, b) TDBG_EXPECT_RELATION(a, b, >)
#define EXPECT_GE(a, b) TDBG_EXPECT_RELATION(a, b, >=)

// Relative closeness; equal infinities and equal zeros are close.
#define EXPECT_CLOSE(a, b, relative)                                           \
  do {                                                                         \
    const double close_a = static_cast<double>(a);                             \
    const double close_b = static_cast<double>(b);                             \
    if (!(close_a == close_b ||                                                \
          std::fabs(close_a - close_b) <= (relative) * std::fabs(close_b))) {  \
      ::tdbg::testing::FailPair(__FILE__, __LINE__,                            \
                                #a " is close to " #b ": ", close_a, close_b); \
    }                                                                          \
  } while (false)

// Checks a Status or a Result, and shows its message when it failed.
#define EXPECT_OK(expression)                                            \
  ([](const auto& expect_ok) {                                           \
    if (!expect_ok.ok()) {                                               \
      ::tdbg::testing::FailOutcome(__FILE__, __LINE__, #expression ": ", \
                                   expect_ok);                           \
    }                                                                    \
  }(expression))
