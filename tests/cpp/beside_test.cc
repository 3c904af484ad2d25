// A pass that reduces differences gives the row of an array of the differences,
// bit by bit; one that copies gives the row of the elements, and a copy.

#include "reducers/beside.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/huge_memory.h"
#include "base/stream_copy.h"
#include "reduce_reference.h"
#include "reduce_views.h"
#include "reducers/reduce.h"
#include "reducers/segments.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                             DType::kFloat16};

bool AreSame(const Summary& a, const Summary& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

std::string Label(DType dtype, Values values, std::size_t n,
                  const Implementation& implementation) {
  return std::string(implementation.name) + ", " +
         std::string(DTypeName(dtype)) + ", " + ValuesName(values) +
         ", n=" + std::to_string(n);
}

// The float next to `x`, of a type of 16 bits, by trying all that there are.
std::uint16_t NearestByTrying(float x, DType dtype) {
  if (std::isnan(x)) return dtype == DType::kFloat16 ? 0x7e00 : 0x7fc0;
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const std::uint16_t infinity = dtype == DType::kFloat16 ? 0x7c00 : 0x7f80;
  std::uint16_t low = 0;
  std::uint16_t high = infinity;
  const auto value = [&](std::uint16_t bits) -> long double {
    if (bits == infinity) {  // As if numbers went on.
      return dtype == DType::kFloat16 ? std::ldexp(1.0L, 16)
                                      : std::ldexp(1.0L, 128);
    }
    return ValueAt(reinterpret_cast<const std::byte*>(&bits), dtype);
  };
  const long double size = std::fabs(static_cast<long double>(x));
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value(middle) <= size ? low : high) = middle;
  }
  const long double below = size - value(low);
  const long double above = value(high) - size;
  const bool up =
      std::isinf(x) || above < below || (above == below && (high & 1) == 0);
  return static_cast<std::uint16_t>((up ? high : low) | sign);
}

TDBG_TEST(NarrowDifferencesAreRoundedToTheNearestTiesToEven) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    constexpr std::size_t n = 20000;
    const std::vector<std::byte> a = Make(dtype, Values::kRandomBits, n);
    std::vector<std::byte> b = Make(dtype, Values::kMixedSizes, n);
    // Neighbours, whose differences are subnormal or zero.
    for (std::size_t i = 0; i < n; i += 3) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &a[2 * i], 2);
      bits = static_cast<std::uint16_t>(bits + i % 5);
      std::memcpy(&b[2 * i], &bits, 2);
    }
    for (const Implementation* implementation : Supported()) {
      std::vector<std::byte> out(2 * n);
      implementation->subtract(a.data(), b.data(), n, dtype, out.data());
      std::size_t n_wrong = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const auto x = static_cast<float>(ValueAt(&a[2 * i], dtype));
        const auto y = static_cast<float>(ValueAt(&b[2 * i], dtype));
        std::uint16_t found = 0;
        std::memcpy(&found, &out[2 * i], 2);
        const bool is_nan =
            std::isnan(static_cast<float>(ValueAt(&out[2 * i], dtype)));
        n_wrong += std::isnan(x - y) ? !is_nan
                                     : found != NearestByTrying(x - y, dtype);
      }
      EXPECT_EQ(n_wrong, 0U);
    }
  }
}

void CheckDifference(DType dtype, Values values, std::size_t n, bool precise) {
  const std::size_t item = ItemSize(dtype);
  const std::vector<std::byte> before = Make(dtype, Values::kNormal, n);
  std::vector<std::byte> after = Make(dtype, values, n);
  const std::int64_t shape[] = {static_cast<std::int64_t>(n)};
  for (const Implementation* implementation : Supported()) {
    std::vector<std::byte> difference(n * item);
    implementation->subtract(after.data(), before.data(), n, dtype,
                             difference.data());
    const Summary expected = ReduceWith(ViewOf(difference.data(), dtype, shape),
                                        {.precise = precise}, *implementation);
    for (const unsigned n_threads : {1U, 3U}) {
      const Summary found =
          ReduceWith(ViewOf(after.data(), dtype, shape),
                     {.precise = precise,
                      .n_threads = n_threads,
                      .beside = {.minus = before.data(), .copy = nullptr}},
                     *implementation);
      if (!AreSame(found, expected)) {
        std::fprintf(stderr, "%s\n",
                     Label(dtype, values, n, *implementation).c_str());
      }
      EXPECT_TRUE(AreSame(found, expected));
    }
  }
}

TDBG_TEST(DifferencesHaveTheRowOfTheirArray) {
  for (const DType dtype : kFloats) {
    for (int values = 0; values < kNumberOfValues; ++values) {
      for (const std::size_t n :
           {0U, 1U, 3U, 16U, 63U, 129U, 1000U, 4096U, 4097U, 8200U, 10007U}) {
        CheckDifference(dtype, static_cast<Values>(values), n, n == 1000);
      }
    }
    const std::size_t large = kLeastParallelBytes / ItemSize(dtype) + 77;
    CheckDifference(dtype, Values::kSprinkled, large, false);
  }
}

TDBG_TEST(ACopyIsMadeInThePassThatReduces) {
  const Result<HugeMemory> memory = HugeMemory::Create(16U << 20);
  EXPECT_TRUE(memory.ok());
  for (const DType dtype : kFloats) {
    const std::size_t item = ItemSize(dtype);
    for (const std::size_t n :
         {std::size_t{1}, std::size_t{1000}, kMinStream / item + 5,
          kLeastParallelBytes / item + 77}) {
      for (const Values values : {Values::kNormal, Values::kSprinkled,
                                  Values::kLargeMean, Values::kExtremes}) {
        const std::vector<std::byte> elements = Make(dtype, values, n);
        const std::int64_t shape[] = {static_cast<std::int64_t>(n)};
        const TensorView view = ViewOf(elements.data(), dtype, shape);
        for (const Implementation* implementation : Supported()) {
          const Summary expected = ReduceWith(view, {}, *implementation);
          // On a cache line, and not.
          for (const std::size_t off : {std::size_t{0}, item}) {
            std::byte* const copy = memory.value().data() + off;
            std::memset(copy, 0xa5, elements.size() + item);
            const Summary found = ReduceWith(
                view,
                {.n_threads = 2, .beside = {.minus = nullptr, .copy = copy}},
                *implementation);
            EXPECT_TRUE(AreSame(found, expected));
            EXPECT_EQ(std::memcmp(copy, elements.data(), elements.size()), 0);
            EXPECT_TRUE(copy[elements.size()] == std::byte{0xa5});
          }
        }
      }
    }
  }
}

TDBG_TEST(ADenseTensorOfAnyOrderIsReducedBesideItsCopy) {
  const std::vector<std::byte> after =
      Make(DType::kFloat32, Values::kNormal, 60);
  const std::vector<std::byte> before =
      Make(DType::kFloat32, Values::kOutlier, 60);
  const std::int64_t shape[] = {5, 12};
  const std::int64_t strides[] = {4, 20};  // Transposed.
  const TensorView view = ViewOf(after.data(), DType::kFloat32, shape, strides);
  const std::byte* first = nullptr;
  EXPECT_TRUE(IsDense(view, &first));
  std::vector<std::byte> difference = before;
  const Summary row =
      Reduce(view, {.beside = {.minus = before.data(), .copy = nullptr}});
  SubtractInto(view, difference.data());
  EXPECT_TRUE(AreSame(
      row, Reduce(ViewOf(difference.data(), DType::kFloat32, shape, strides))));
  const std::int64_t apart[] = {4, 24};
  EXPECT_TRUE(
      !IsDense(ViewOf(after.data(), DType::kFloat32, shape, apart), &first));
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
