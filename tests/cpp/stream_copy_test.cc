// Every byte of a copy, and none around it, whatever the alignments and the
// length.

#include "base/stream_copy.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "tensor/tensor_view.h"
#include "testing.h"

namespace tdbg {
namespace {

constexpr std::size_t kAround = 128;
constexpr std::byte kUntouched{0xa5};

std::vector<std::byte> Values(std::size_t n) {
  std::vector<std::byte> values(n);
  std::uint32_t state = 1;
  for (std::byte& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<std::byte>(state >> 24);
  }
  return values;
}

// The number of bytes that `copy` leaves wrong in a buffer at `at`.
template <typename Copy>
std::size_t WrongBytes(const std::vector<std::byte>& from, std::size_t first,
                       std::size_t n, std::size_t at, Copy copy) {
  std::vector<std::byte> out(at + n + kAround, kUntouched);
  copy(out.data() + at, from.data() + first, n);
  std::size_t n_wrong = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool is_copied = i >= at && i < at + n;
    const std::byte expected = is_copied ? from[first + i - at] : kUntouched;
    if (out[i] != expected) ++n_wrong;
  }
  return n_wrong;
}

// Sabotage seen to fail here: leaving out what comes after the last block, and
// what comes before the first line.
TDBG_TEST(EveryByteIsCopiedAndNoneAround) {
  const std::vector<std::byte> from = Values(5000);
  for (std::size_t n = 0; n < 1200; n += n < 400 ? 1 : 37) {
    for (const std::size_t at : {0U, 1U, 8U, 16U, 31U, 63U, 64U}) {
      EXPECT_EQ(WrongBytes(from, n % 67, n, at, &StreamCopy), 0U);
    }
  }
}

TDBG_TEST(LargeValuesAreCopiedToo) {
  const std::vector<std::byte> from = Values(kMinStream + 4096);
  for (const std::size_t n : {kMinStream - 1, kMinStream, kMinStream + 1003}) {
    const std::int64_t shape[] = {static_cast<std::int64_t>(n)};
    const auto copy = [&](std::byte* out, const std::byte* p, std::size_t) {
      CopyContiguous({.data = p,
                      .dtype = DType::kUInt8,
                      .item_size = 1,
                      .shape = shape,
                      .strides = {}},
                     out);
    };
    EXPECT_EQ(WrongBytes(from, 7, n, 64, copy), 0U);
    EXPECT_EQ(WrongBytes(from, 7, n, 64 + 13, copy), 0U);
  }
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
