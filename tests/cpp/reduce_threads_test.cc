// The number of threads changes no bit, and neither do callers at the same
// time.

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "reduce_reference.h"
#include "reduce_views.h"
#include "reducers/reduce.h"
#include "reducers/segments.h"
#include "sanitized.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

bool AreSame(const Summary& a, const Summary& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// Elements of several rounds of a segment each would take too long to make.
std::vector<std::byte> Repeated(DType dtype, Values values, std::size_t n) {
  const std::size_t item = ItemSize(dtype);
  const std::vector<std::byte> some = Make(dtype, values, 100003);
  std::vector<std::byte> elements(n * item);
  for (std::size_t at = 0; at < elements.size(); at += some.size()) {
    std::memcpy(elements.data() + at, some.data(),
                std::min(some.size(), elements.size() - at));
  }
  return elements;
}

TDBG_TEST(TheNumberOfThreadsChangesNoBit) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat64, DType::kInt64,
        DType::kUInt8, DType::kFloat8E4M3Fn}) {
    const std::size_t n = 9 * kLeastParallelBytes / 4 / ItemSize(dtype) + 77;
    for (const Values values : {Values::kLargeMean, Values::kSprinkled}) {
      // How elements are shared out does not depend on what they are.
      if (kHasThreadSanitizer && values == Values::kLargeMean) continue;
      const std::vector<std::byte> elements = Repeated(dtype, values, n);
      const std::int64_t shape[] = {static_cast<std::int64_t>(n)};
      const TensorView view = ViewOf(elements.data(), dtype, shape);
      for (const Implementation* implementation : Supported()) {
        const Summary alone = ReduceWith(view, {}, *implementation);
        EXPECT_EQ(alone.count, n);
        for (const unsigned n_threads : {2U, 3U, 7U, 1000U}) {
          const Summary together =
              ReduceWith(view, {.n_threads = n_threads}, *implementation);
          EXPECT_TRUE(AreSame(alone, together));
        }
      }
    }
  }
}

TDBG_TEST(ManyRoundsOfSegmentsAreTheWholeTensor) {
  const std::size_t n = 140 * SegmentElements(1) + 5;
  std::vector<std::byte> ones(n, std::byte{1});
  ones[n - 1] = std::byte{7};
  ones[SegmentElements(1)] = std::byte{0};
  const std::int64_t shape[] = {static_cast<std::int64_t>(n)};
  for (const unsigned n_threads : {1U, 3U}) {
    const Summary s = Reduce(ViewOf(ones.data(), DType::kUInt8, shape),
                             {.n_threads = n_threads});
    EXPECT_EQ(s.count, n);
    EXPECT_EQ(s.zero, 1U);
    EXPECT_EQ(s.max.u64, 7U);
    EXPECT_EQ(s.l1, static_cast<double>(n + 5));
  }
}

TDBG_TEST(AlignmentChangesNoBitOfALargeTensor) {
  const std::size_t n = 2 * SegmentElements(4) + 99;
  const std::vector<std::byte> elements =
      Repeated(DType::kFloat32, Values::kLargeMean, n);
  std::vector<std::byte> room(elements.size() + 8);
  const std::int64_t shape[] = {static_cast<std::int64_t>(n)};
  for (const Implementation* implementation : Supported()) {
    const Summary aligned = ReduceWith(
        ViewOf(elements.data(), DType::kFloat32, shape), {}, *implementation);
    for (const std::size_t off : {1U, 2U, 4U}) {
      std::memcpy(room.data() + off, elements.data(), elements.size());
      EXPECT_TRUE(AreSame(
          aligned, ReduceWith(ViewOf(room.data() + off, DType::kFloat32, shape),
                              {}, *implementation)));
    }
  }
}

TDBG_TEST(CallersAtTheSameTimeGetTheirOwnAnswers) {
  constexpr int kCallers = 4;
  const std::size_t n = 2 * kLeastParallelBytes / sizeof(float);
  std::vector<std::vector<std::byte>> elements;
  std::vector<Summary> expected;
  const std::int64_t shape[] = {static_cast<std::int64_t>(n)};
  for (int i = 0; i < kCallers; ++i) {
    elements.push_back(Repeated(DType::kFloat32, Values::kNormal, n));
    const float mark = static_cast<float>(100 + i);
    std::memcpy(elements.back().data() + 4 * static_cast<std::size_t>(i), &mark,
                4);
    expected.push_back(
        Reduce(ViewOf(elements.back().data(), DType::kFloat32, shape)));
  }
  std::atomic<int> n_wrong{0};
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        const Summary s =
            Reduce(ViewOf(elements[i].data(), DType::kFloat32, shape),
                   {.n_threads = 3});
        if (!AreSame(s, expected[i])) ++n_wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(n_wrong.load(), 0);
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
