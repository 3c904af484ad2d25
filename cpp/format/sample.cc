#include "format/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace tdbg {
namespace {

// Neighbours share cache lines, and values of one row are much alike: runs that
// are neither single elements nor a single piece.
constexpr std::size_t kRun = 32;
// Two samples of a quarter of a thousand elements of the same values differ by
// a tenth of a bit and a few per cent of zeros.
constexpr float kUnlikeBits = 0.5F;
constexpr float kUnlikeShare = 0.1F;

// c * log2(c) for every count.
struct CountLogs {
  CountLogs() {
    for (std::size_t c = 2; c < std::size(of); ++c) {
      of[c] = static_cast<float>(static_cast<double>(c) *
                                 std::log2(static_cast<double>(c)));
    }
  }
  float of[PlaneSample::kSampleElements + 1] = {};
};

const CountLogs& Logs() {
  static const CountLogs logs;
  return logs;
}

using Counts = std::uint16_t[256];

// Of `n` bytes with these counts, corrected by Miller and Madow for what a
// sample misses.
float Entropy(const Counts& counts, std::size_t n) {
  if (n == 0) return 0;
  const CountLogs& logs = Logs();
  float sum = 0;
  std::size_t n_seen = 0;
  for (const std::uint16_t count : counts) {
    sum += logs.of[count];
    n_seen += count != 0 ? 1 : 0;
  }
  const auto total = static_cast<float>(n);
  const float plain = std::log2(total) - sum / total;
  const float missed = static_cast<float>(n_seen - 1) / (1.386294F * total);
  return std::min(8.0F, plain + missed);
}

template <typename T>
T At(std::span<const std::byte> bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
PlaneSample Sample(std::span<const std::byte> raw,
                   std::span<const std::byte> base, bool rotate,
                   std::size_t n_elements) {
  PlaneSample sample;
  sample.width = sizeof(T);
  const std::size_t n = raw.size() / sizeof(T);
  Counts counts[sizeof(T)] = {};
  std::size_t n_zero = 0;
  std::size_t n_seen = 0;
  const int by = rotate ? 1 : 0;
  // Runs start at even distances; a short chunk is one of adjoining runs.
  const std::size_t n_wanted = n_elements / kRun;
  const std::size_t n_runs = std::min(n_wanted, (n + kRun - 1) / kRun);
  for (std::size_t run = 0; run < n_runs; ++run) {
    const std::size_t from =
        n_runs < n_wanted ? run * kRun : run * (n - kRun) / (n_wanted - 1);
    const std::size_t m = std::min(kRun, n - from);
    for (std::size_t i = from; i < from + m; ++i) {
      T value = At<T>(raw, i);
      if (!base.empty()) value ^= At<T>(base, i);
      n_zero += value == 0 ? 1 : 0;
      value = std::rotl(value, by);
      for (std::size_t p = 0; p < sizeof(T); ++p) {
        ++counts[p][static_cast<std::uint8_t>(value >> (8 * p))];
      }
    }
    n_seen += m;
  }
  if (n_seen == 0) return sample;
  sample.zero_share = static_cast<float>(n_zero) / static_cast<float>(n_seen);
  for (std::size_t p = 0; p < sizeof(T); ++p) {
    sample.bits[p] = Entropy(counts[p], n_seen);
    sample.value_bits[p] = sample.bits[p];
    if (n_zero == 0) continue;
    counts[p][0] = static_cast<std::uint16_t>(counts[p][0] - n_zero);
    sample.value_bits[p] = Entropy(counts[p], n_seen - n_zero);
  }
  return sample;
}

float Sum(const std::array<float, kMaxPlanes>& bits, std::uint32_t width) {
  float sum = 0;
  for (std::uint32_t p = 0; p < width; ++p) {
    sum += bits[p] > PlaneSample::kWorthBits ? 8.0F : bits[p];
  }
  return sum;
}

std::uint32_t Above(const std::array<float, kMaxPlanes>& bits,
                    std::uint32_t width, float limit) {
  std::uint32_t above = 0;
  for (std::uint32_t p = 0; p < width; ++p) {
    if (bits[p] > limit) above |= 1U << p;
  }
  return above;
}

// Of a plane of bits that are set with this probability.
float BitEntropy(float share) {
  if (share <= 0 || share >= 1) return 0;
  return -(share * std::log2(share) + (1 - share) * std::log2(1 - share));
}

}  // namespace

float PlaneSample::DenseBits() const { return Sum(bits, width); }

float PlaneSample::SparseBits() const {
  return (1 - zero_share) * Sum(value_bits, width) + BitEntropy(zero_share);
}

std::uint32_t PlaneSample::RawPlanes(float limit) const {
  return Above(bits, width, limit);
}

std::uint32_t PlaneSample::RawValuePlanes(float limit) const {
  return Above(value_bits, width, limit);
}

bool PlaneSample::IsLike(const PlaneSample& other) const {
  TDBG_DCHECK(width == other.width);
  if (std::abs(zero_share - other.zero_share) > kUnlikeShare) return false;
  for (std::uint32_t p = 0; p < width; ++p) {
    if (std::abs(bits[p] - other.bits[p]) > kUnlikeBits) return false;
  }
  return true;
}

PlaneSample SamplePlanes(std::span<const std::byte> raw,
                         std::span<const std::byte> base, std::uint32_t width,
                         bool rotate, std::size_t n_elements) {
  TDBG_DCHECK(width == 1 || width == 2 || width == 4 || width == 8);
  TDBG_DCHECK(base.empty() || base.size() == raw.size());
  switch (width) {
    case 8:
      return Sample<std::uint64_t>(raw, base, rotate, n_elements);
    case 4:
      return Sample<std::uint32_t>(raw, base, rotate, n_elements);
    case 2:
      return Sample<std::uint16_t>(raw, base, rotate, n_elements);
    default:
      return Sample<std::uint8_t>(raw, base, rotate, n_elements);
  }
}

}  // namespace tdbg
