// SHA-256 against the examples of the standard.

#include "base/sha256.h"

#include <cstddef>
#include <string>

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

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
