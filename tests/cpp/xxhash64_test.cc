// XXH64 against the values of the reference implementation.

#include "base/xxhash64.h"

#include <cstdint>
#include <string>

#include "testing.h"

namespace tdbg {
namespace {

std::uint64_t HashOf(const std::string& text, std::uint64_t seed = 0) {
  return XxHash64(text.data(), text.size(), seed);
}

// Of python-xxhash 4.1 (libxxhash 0.8.4).
TDBG_TEST(Xxh64IsThatOfTheReference) {
  EXPECT_EQ(HashOf(""), 0xEF46DB3751D8E999U);
  EXPECT_EQ(HashOf("a"), 0xD24EC4F1A98C6E5BU);
  EXPECT_EQ(HashOf("abc"), 0x44BC2CF5AD770999U);
  EXPECT_EQ(HashOf("Nobody inspects the spammish repetition"),
            0xFBCEA83C8A378BF1U);
  EXPECT_EQ(HashOf("Nobody inspects the spammish repetition", 1),
            0x43F425448D954DB6U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
