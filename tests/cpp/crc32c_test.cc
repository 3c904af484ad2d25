// CRC-32C against published values, and both implementations against a bitwise
// one.

#include "base/crc32c.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "testing.h"

namespace {

using namespace tdbg;  // NOLINT: a test.

std::uint32_t Bitwise(const std::vector<std::uint8_t>& bytes) {
  std::uint32_t crc = ~0U;
  for (const std::uint8_t byte : bytes) {
    crc ^= byte;
    for (int i = 0; i < 8; ++i) {
      crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
    }
  }
  return ~crc;
}

TDBG_TEST(PublishedValuesAreReproduced) {
  const std::string digits = "123456789";
  EXPECT_EQ(Crc32c(digits.data(), digits.size()), 0xe3069283U);
  // RFC 3720, section B.4.
  std::vector<std::uint8_t> bytes(32, 0);
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x8a9136aaU);
  bytes.assign(32, 0xff);
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x62a8ab43U);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::uint8_t>(i);
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x46dd794eU);
  EXPECT_EQ(Crc32c(nullptr, 0), 0U);
}

TDBG_TEST(EveryLengthAndAlignmentAgreesWithTheBitwiseDefinition) {
  std::mt19937 random(1);
  std::vector<std::uint8_t> bytes(400);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  for (std::size_t from = 0; from < 9; ++from) {
    for (std::size_t n = 0; n < 300; ++n) {
      const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(from);
      const auto expected = Bitwise({at, at + static_cast<std::ptrdiff_t>(n)});
      EXPECT_EQ(Crc32c(bytes.data() + from, n), expected);
      EXPECT_EQ(Crc32cPortable(bytes.data() + from, n), expected);
    }
  }
}

// Long ones are summed in several streams at a time.
TDBG_TEST(LongInputsAgreeWithTheTables) {
  std::mt19937 random(2);
  std::vector<std::uint8_t> bytes(600'000);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  std::vector<std::size_t> sizes;
  for (const std::size_t edge :
       {1024U, 2048U, 16384U, 17408U, 262144U, 279552U, 524288U}) {
    for (std::size_t n = edge - 9; n <= edge + 9; ++n) sizes.push_back(n);
  }
  for (int i = 0; i < 200; ++i) sizes.push_back(random() % 590000);
  for (const std::size_t n : sizes) {
    const std::size_t from = random() % 64;
    const auto before = static_cast<std::uint32_t>(random());
    EXPECT_EQ(Crc32c(bytes.data() + from, n, before),
              Crc32cPortable(bytes.data() + from, n, before));
  }
}

TDBG_TEST(AChecksumContinuesFromItsFirstPart) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  const std::uint32_t whole = Crc32c(text.data(), text.size());
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::uint32_t first = Crc32c(text.data(), cut);
    const std::uint32_t first_portable = Crc32cPortable(text.data(), cut);
    EXPECT_EQ(Crc32c(text.data() + cut, text.size() - cut, first), whole);
    EXPECT_EQ(
        Crc32cPortable(text.data() + cut, text.size() - cut, first_portable),
        whole);
  }
}

TDBG_TEST(StoredChecksumsAreMasked) {
  EXPECT_EQ(MaskCrc(0), 0xa282ead8U);
  EXPECT_EQ(MaskCrc(0xffffffffU), 0xa282ead7U);
  EXPECT_EQ(MaskedCrc32c("123456789", 9), MaskCrc(0xe3069283U));
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
