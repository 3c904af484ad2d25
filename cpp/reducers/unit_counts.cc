#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "reducers/byte_values.h"
#include "reducers/element_walk.h"
#include "reducers/flush_to_zero.h"
#include "reducers/reduce.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {

// Columns that are counted side by side, in registers and L1.
constexpr std::size_t kTileColumns = 256;
// Rows after which 32-bit counts are emptied.
constexpr std::size_t kMostRows = std::size_t{1} << 30;

// What elements are compared with, as C: float where elements convert to it
// exactly, else double.
template <typename C>
struct Range {
  C low;
  C high;
};

// The least float >= bound.
float FloatAtLeast(double bound) {
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  if (bound > kMax) return kInf;
  if (bound < -kMax)
    return bound < std::numeric_limits<double>::lowest() ? -kInf : -kMax;
  const auto nearest = static_cast<float>(bound);
  return nearest < bound ? __builtin_nextafterf(nearest, kInf) : nearest;
}

template <typename C>
Range<C> RangeOf(double low, double high);
template <>
Range<float> RangeOf(double low, double high) {
  return {FloatAtLeast(low), -FloatAtLeast(-high)};
}
template <>
Range<double> RangeOf(double low, double high) {
  return {low, high};
}

// True for NaN, too.
template <typename C>
bool IsBeyond(C x, Range<C> range) {
  return !(x >= range.low) | !(x <= range.high);
}

// How elements of type T become C.
template <typename C, typename T>
struct Elements {
  C operator()(T x) const { return static_cast<C>(x); }
};
template <>
struct Elements<float, Float16> {
  float operator()(Float16 x) const { return ToFloat(x); }
};
template <>
struct Elements<float, BFloat16> {
  float operator()(BFloat16 x) const { return ToFloat(x); }
};
// A byte of any of the 8-bit types.
struct ByteElements {
  const std::array<double, 256>* values;
  double operator()(std::uint8_t x) const { return (*values)[x]; }
};

template <typename C, typename T, typename Convert>
void CountRun(const T* p, std::size_t n, Convert convert, Range<C> range,
              UnitCounts* unit) {
  unit->count += n;
  while (n > 0) {
    const std::size_t n_now = n < kMostRows ? n : kMostRows;
    std::uint32_t active = 0;
    std::uint32_t beyond = 0;
    for (std::size_t i = 0; i < n_now; ++i) {
      const C x = convert(p[i]);
      active += x > 0 ? 1U : 0U;
      beyond += IsBeyond(x, range) ? 1U : 0U;
    }
    unit->active += active;
    unit->beyond += beyond;
    p += n_now;
    n -= n_now;
  }
}

// The counts of up to kTileColumns units that lie side by side.
struct Tile {
  std::array<std::uint32_t, kTileColumns> active{};
  std::array<std::uint32_t, kTileColumns> beyond{};
  std::uint32_t n_rows = 0;

  void EmptyInto(std::span<UnitCounts> units) {
    for (std::size_t i = 0; i < units.size(); ++i) {
      units[i].active += active[i];
      units[i].beyond += beyond[i];
      units[i].count += n_rows;
    }
    *this = Tile{};
  }
};

// Units are the last dimension in memory: rows hold an element of each.
template <typename C, typename T, typename Convert>
void CountColumns(const TensorView& view, std::size_t axis, Convert convert,
                  Range<C> range, std::span<UnitCounts> units) {
  const ElementWalk walk(view, axis);
  for (std::size_t first = 0; first < units.size(); first += kTileColumns) {
    const std::size_t n_columns = std::min(kTileColumns, units.size() - first);
    Tile tile;
    const auto add_row = [&](const std::byte* at) {
      const T* p = reinterpret_cast<const T*>(at) + first;
      for (std::size_t i = 0; i < n_columns; ++i) {
        const C x = convert(p[i]);
        tile.active[i] += x > 0 ? 1U : 0U;
        tile.beyond[i] += IsBeyond(x, range) ? 1U : 0U;
      }
      if (++tile.n_rows == kMostRows) {
        tile.EmptyInto(units.subspan(first, n_columns));
      }
    };
    walk.ForEachRow([&](const std::byte* row) {
      for (std::size_t i = 0; i < walk.row_extent(); ++i) {
        add_row(row + walk.row_stride() * static_cast<std::int64_t>(i));
      }
    });
    tile.EmptyInto(units.subspan(first, n_columns));
  }
}

bool AllAligned(const TensorView& view) {
  bool aligned = IsAligned(view.data, view.item_size);
  for (const std::int64_t stride : view.strides) {
    aligned &= stride % static_cast<std::int64_t>(view.item_size) == 0;
  }
  return aligned;
}

template <typename C, typename T, typename Convert = Elements<C, T>>
void Count(const TensorView& view, std::size_t axis, double low, double high,
           std::span<UnitCounts> units, Convert convert = {}) {
  const Range<C> range = RangeOf<C>(low, high);
  const std::int64_t stride = StrideOf(view, axis);
  if (stride == static_cast<std::int64_t>(view.item_size) && AllAligned(view)) {
    CountColumns<C, T>(view, axis, convert, range, units);
    return;
  }
  TensorView unit_view = view;
  const auto* base = static_cast<const std::byte*>(view.data);
  for (std::size_t u = 0; u < units.size(); ++u) {
    unit_view.data = base + stride * static_cast<std::int64_t>(u);
    ForEachRun(unit_view, axis, [&](const std::byte* data, std::size_t n) {
      CountRun<C>(reinterpret_cast<const T*>(data), n, convert, range,
                  &units[u]);
    });
  }
}

}  // namespace

void CountUnits(const TensorView& view, std::size_t axis, double low,
                double high, std::span<UnitCounts> units) {
  if (view.count() == 0) return;
  const FlushToZeroOff exact;
  switch (view.dtype) {
    case DType::kFloat32:
      return Count<float, float>(view, axis, low, high, units);
    case DType::kFloat16:
      return Count<float, Float16>(view, axis, low, high, units);
    case DType::kBFloat16:
      return Count<float, BFloat16>(view, axis, low, high, units);
    case DType::kFloat64:
      return Count<double, double>(view, axis, low, high, units);
    case DType::kInt16:
      return Count<double, std::int16_t>(view, axis, low, high, units);
    case DType::kInt32:
      return Count<double, std::int32_t>(view, axis, low, high, units);
    case DType::kInt64:
      return Count<double, std::int64_t>(view, axis, low, high, units);
    case DType::kUInt16:
      return Count<double, std::uint16_t>(view, axis, low, high, units);
    case DType::kUInt32:
      return Count<double, std::uint32_t>(view, axis, low, high, units);
    case DType::kUInt64:
      return Count<double, std::uint64_t>(view, axis, low, high, units);
    default:
      return Count<double, std::uint8_t>(view, axis, low, high, units,
                                         ByteElements{&ByteValues(view.dtype)});
  }
}

}  // namespace tdbg
