// Bytes to numbers and back.

#include "base/coding.h"

#include <limits>
#include <vector>

#include "testing.h"

namespace {

using namespace tdbg;  // NOLINT: a test.

TDBG_TEST(NumbersAreLittleEndian) {
  std::vector<std::byte> out;
  ByteWriter writer(&out);
  writer.Put<std::uint32_t>(0x04030201U);
  EXPECT_EQ(writer.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(static_cast<std::size_t>(out[i]), i + 1);
  }
}

TDBG_TEST(WhatIsWrittenIsReadBack) {
  std::vector<std::byte> out;
  ByteWriter writer(&out);
  writer.Put<std::uint8_t>(7);
  writer.Put<std::int64_t>(-5);
  writer.Put(1.5);
  writer.PutString("name");
  ByteReader reader(out);
  EXPECT_EQ(reader.Get<std::uint8_t>(), 7);
  EXPECT_EQ(reader.Get<std::int64_t>(), -5);
  EXPECT_EQ(reader.Get<double>(), 1.5);
  EXPECT_EQ(reader.position(), 17U);
  EXPECT_EQ(reader.GetString(4), "name");
  EXPECT_EQ(reader.remaining(), 0U);
  EXPECT_FALSE(reader.failed());
}

TDBG_TEST(NumbersAreStoredAtAnyAddress) {
  std::byte bytes[16] = {};
  Store<std::uint64_t>(bytes + 3, 0x1122334455667788U);
  EXPECT_EQ(Load<std::uint64_t>(bytes + 3), 0x1122334455667788U);
}

TDBG_TEST(AlignmentCountsFromTheBase) {
  std::vector<std::byte> out(5);
  ByteWriter writer(&out);
  writer.Align(8, 5);
  EXPECT_EQ(out.size(), 5U);
  writer.Put<std::uint8_t>(1);
  writer.Align(8, 5);
  EXPECT_EQ(out.size(), 13U);
  EXPECT_EQ(static_cast<int>(out[12]), 0);
}

TDBG_TEST(AReadPastTheEndFailsForGoodAndYieldsZeros) {
  std::vector<std::byte> bytes(6, std::byte{0xff});
  ByteReader reader(bytes);
  EXPECT_EQ(reader.Get<std::uint32_t>(), 0xffffffffU);
  EXPECT_EQ(reader.Get<std::uint32_t>(), 0U);
  EXPECT_TRUE(reader.failed());
  EXPECT_EQ(reader.Get<std::uint8_t>(), 0);
  EXPECT_TRUE(reader.GetBytes(1).empty());
  EXPECT_TRUE(reader.GetString(1).empty());
}

TDBG_TEST(ALengthNearTheGreatestNumberIsPastTheEnd) {
  std::vector<std::byte> bytes(6);
  ByteReader reader(bytes);
  reader.Skip(2);
  EXPECT_TRUE(
      reader.GetBytes(std::numeric_limits<std::uint64_t>::max()).empty());
  EXPECT_TRUE(reader.failed());
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
