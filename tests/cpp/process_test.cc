// Identities: of this process, of its machine, and of bytes.

#include "base/process.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/sha256.h"
#include "child_process.h"
#include "testing.h"

namespace tdbg {
namespace {

std::string Hex(const std::string& text) {
  std::string hex;
  for (const std::byte byte : Sha256(text.data(), text.size())) {
    constexpr const char* kDigits = "0123456789abcdef";
    hex += kDigits[std::to_integer<int>(byte) >> 4];
    hex += kDigits[std::to_integer<int>(byte) & 15];
  }
  return hex;
}

// The examples of FIPS 180-4.
TDBG_TEST(Sha256IsThatOfTheStandard) {
  EXPECT_EQ(Hex("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

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
