// Arithmetic that reports overflow.

#include "base/checked_math.h"

#include <cstdint>
#include <limits>

#include "testing.h"

namespace tdbg {
namespace {

TDBG_TEST(OverflowOfSizesIsReported) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t out = 0;
  EXPECT_TRUE(CheckedAdd(kMax - 1, 1, &out));
  EXPECT_EQ(out, kMax);
  EXPECT_FALSE(CheckedAdd(kMax, 1, &out));
  EXPECT_TRUE(CheckedMul(1ULL << 32, (1ULL << 32) - 1, &out));
  EXPECT_FALSE(CheckedMul(1ULL << 32, 1ULL << 32, &out));
  EXPECT_TRUE(CheckedAlign(65, 64, &out));
  EXPECT_EQ(out, 128U);
  EXPECT_TRUE(CheckedAlign(0, 64, &out));
  EXPECT_EQ(out, 0U);
  EXPECT_FALSE(CheckedAlign(kMax - 3, 64, &out));
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
