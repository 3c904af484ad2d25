// Identities of this process and of its machine.

#include "base/process.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>

#include "base/clock.h"
#include "child_process.h"
#include "testing.h"

namespace tdbg {
namespace {

TDBG_TEST(AProcessHasAStartAndAMachine) {
  const std::uint64_t own = ProcessStart(::getpid());
  EXPECT_GT(own, 0U);
  EXPECT_EQ(ProcessStart(1LL << 40), 0U);
  EXPECT_TRUE(BootId() == BootId());
  EXPECT_TRUE((BootId() != std::array<std::byte, 16>{}));
  EXPECT_TRUE((HostId() != std::array<std::byte, 16>{}));
  EXPECT_NE(RandomBits(), RandomBits());
}

TDBG_TEST(AChildKnowsThatItWasForked) {
  const std::uint64_t depth = ForkDepth();
  const pid_t child = testing::Fork([&] {
    if (ForkDepth() != depth + 1) return 1;
    const pid_t grandchild =
        testing::Fork([&] { return ForkDepth() == depth + 2 ? 0 : 1; });
    return testing::WaitFor(grandchild, std::chrono::milliseconds(10000))
        .exit_code;
  });
  EXPECT_EQ(testing::WaitFor(child, std::chrono::milliseconds(20000)).exit_code,
            0);
  EXPECT_EQ(ForkDepth(), depth);
}

TDBG_TEST(ClocksGoForward) {
  const std::int64_t monotonic = MonotonicNs();
  EXPECT_LE(monotonic, MonotonicNs());
  EXPECT_GT(BootNs(), 0);
  EXPECT_GT(WallNs(), 1'700'000'000'000'000'000);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
