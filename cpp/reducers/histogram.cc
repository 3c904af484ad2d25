#include "reducers/histogram.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "reducers/bins-inl.h"
#include "reducers/bins.h"
#include "reducers/byte_values.h"
#include "reducers/element_walk.h"
#include "reducers/flush_to_zero.h"
#include "reducers/implementation.h"

namespace tdbg {
namespace {

// As many counters as one cache line holds: looked at together.
constexpr std::size_t kCountersInLine = 16;

// The table of the calling thread, empty.  Touching 65536 counters costs more
// than counting a small tensor, so that a table is made once, and emptied where
// something was counted only.
BinTable& EmptyTable() {
  static thread_local const std::unique_ptr<BinTable> table =
      std::make_unique<BinTable>();
  table->zeros = 0;
  table->least = 0xffff;
  table->greatest = 0;
  table->has_positive = false;
  table->has_negative = false;
  return *table;
}

bool IsEmptyLine(const std::uint32_t* line) {
  std::uint32_t any = 0;
  for (std::size_t i = 0; i < kCountersInLine; ++i) any |= line[i];
  return any == 0;
}

// Moves the counters of `first` to `last` to `*bins`.
void TakeRange(std::size_t first, std::size_t last, BinTable* table,
               BinCounts* bins) {
  const std::size_t begin = first / kCountersInLine * kCountersInLine;
  std::size_t n = 0;
  for (std::size_t key = begin; key <= last; ++key) {
    n += table->counts[key] != 0 ? 1U : 0U;
  }
  bins->keys.reserve(bins->keys.size() + n);
  bins->counts.reserve(bins->counts.size() + n);
  for (std::size_t line = begin; line <= last; line += kCountersInLine) {
    std::uint32_t* counts = table->counts + line;
    if (IsEmptyLine(counts)) continue;
    for (std::size_t i = 0; i < kCountersInLine; ++i) {
      if (counts[i] == 0) continue;
      bins->keys.push_back(static_cast<std::uint16_t>(line + i));
      bins->counts.push_back(counts[i]);
    }
    std::memset(counts, 0, kCountersInLine * sizeof(*counts));
  }
}

// What the table has counted; leaves all its counters zero.
BinCounts Take(BinTable* table) {
  std::memset(table->counts + kFirstSpareKey, 0,
              kSpareKeys * sizeof(*table->counts));
  BinCounts bins;
  if (table->zeros > 0) {
    bins.keys.push_back(kZeroKey);
    bins.counts.push_back(table->zeros);
  }
  if (table->has_positive) {
    TakeRange(table->least, table->greatest, table, &bins);
  }
  if (table->has_negative) {
    TakeRange(kSignBit | table->least, kSignBit | table->greatest, table,
              &bins);
  }
  return bins;
}

// The bins of elements whose keys are `keys`; those of equal keys are added.
BinCounts Sorted(std::vector<std::pair<std::uint16_t, std::uint64_t>> pairs) {
  std::sort(pairs.begin(), pairs.end());
  BinCounts bins;
  for (const auto& [key, count] : pairs) {
    if (!bins.keys.empty() && bins.keys.back() == key) {
      bins.counts.back() += count;
    } else {
      bins.keys.push_back(key);
      bins.counts.push_back(count);
    }
  }
  return bins;
}

BinCounts CountWide(const TensorView& view, double scale,
                    const Implementation& implementation) {
  BinTable* table = &EmptyTable();
  BinCounts bins;
  std::uint64_t n_counted = 0;
  ForEachRun(ElementWalk(view), view.item_size,
             [&](const std::byte* data, std::size_t n) {
               while (n > 0) {
                 if (n_counted == kMostCounted) {
                   bins.Merge(Take(table));
                   table = &EmptyTable();
                   n_counted = 0;
                 }
                 const auto n_now = static_cast<std::size_t>(
                     std::min<std::uint64_t>(n, kMostCounted - n_counted));
                 implementation.count_bins(data, n_now, view.dtype, scale,
                                           table);
                 data += n_now * view.item_size;
                 n -= n_now;
                 n_counted += n_now;
               }
             });
  BinCounts last = Take(table);
  if (bins.keys.empty()) return last;
  bins.Merge(last);
  return bins;
}

BinCounts CountNarrow(const TensorView& view, double scale) {
  ByteCounts counts{};
  ForEachRun(ElementWalk(view), view.item_size,
             [&](const std::byte* data, std::size_t n) {
               CountBytes(data, n, &counts);
             });
  const std::array<double, 256>& values = ByteValues(view.dtype);
  std::vector<std::pair<std::uint16_t, std::uint64_t>> pairs;
  for (std::size_t b = 0; b < counts.size(); ++b) {
    if (counts[b] > 0) pairs.emplace_back(BinKey(values[b] * scale), counts[b]);
  }
  return Sorted(std::move(pairs));
}

// Whether the bin of an element times `scale` follows from that of the element:
// bins of powers of two lie in one another, those of smaller numbers being no
// finer.  Float64 elements may lie beyond the bins.
bool ScalesBins(DType dtype, double scale) {
  int exponent = 0;
  const double mantissa = std::frexp(std::fabs(scale), &exponent);
  return dtype != DType::kFloat64 && mantissa == 0.5 && exponent <= 1;
}

// The bins of elements in `bins`, each multiplied by `scale`.
// REQUIRES: ScalesBins(of the elements' dtype, scale).
BinCounts Scaled(const BinCounts& bins, double scale) {
  std::vector<std::pair<std::uint16_t, std::uint64_t>> pairs;
  pairs.reserve(bins.keys.size());
  for (std::size_t i = 0; i < bins.keys.size(); ++i) {
    // The least element of a bin stands for all.
    const float least = __builtin_bit_cast(
        float, static_cast<std::uint32_t>(bins.keys[i]) << 16);
    pairs.emplace_back(BinKey(static_cast<double>(least) * scale),
                       bins.counts[i]);
  }
  return Sorted(std::move(pairs));
}

}  // namespace

void BinCounts::Merge(const BinCounts& other) {
  std::vector<std::pair<std::uint16_t, std::uint64_t>> pairs;
  pairs.reserve(keys.size() + other.keys.size());
  for (const BinCounts* part : {static_cast<const BinCounts*>(this), &other}) {
    for (std::size_t i = 0; i < part->keys.size(); ++i) {
      pairs.emplace_back(part->keys[i], part->counts[i]);
    }
  }
  *this = Sorted(std::move(pairs));
}

std::uint16_t BinKey(double value) {
  const FlushToZeroOff exact;
  return KeyOf(value);
}

BinCounts CountBinsWith(const TensorView& view, double scale,
                        const Implementation& implementation) {
  TDBG_DCHECK(HasStatistics(view.dtype));
  TDBG_DCHECK(view.device == DeviceKind::kCpu);
  TDBG_DCHECK(view.shape.size() <= ElementWalk::kMaxDimensions);
  TDBG_DCHECK(std::isfinite(scale) && scale != 0);
  TDBG_DCHECK(implementation.supported());
  if (view.count() == 0) return {};
  const FlushToZeroOff exact;
  if (view.item_size == 1) return CountNarrow(view, scale);
  if (scale == 1.0 || !ScalesBins(view.dtype, scale)) {
    return CountWide(view, scale, implementation);
  }
  return Scaled(CountWide(view, 1.0, implementation), scale);
}

BinCounts CountBins(const TensorView& view, double scale) {
  return CountBinsWith(view, scale, ImplementationInUse());
}

}  // namespace tdbg
