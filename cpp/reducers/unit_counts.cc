#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "reducers/byte_values.h"
#include "reducers/element_walk.h"
#include "reducers/flush_to_zero.h"
#include "reducers/implementation.h"
#include "reducers/reduce.h"
#include "reducers/unit_kernels.h"

namespace tdbg {
namespace {

// Columns whose counters are kept side by side, in L1.
constexpr std::size_t kMostColumns = 2048;
// Rows short of this many columns are taken together.
constexpr std::size_t kFewColumns = 256;
// Runs shorter than this are counted as columns.
constexpr std::size_t kShortRun = 64;
// Rows that a kernel is given at once.
constexpr std::size_t kMostRows = 256;
// Rows after which 32-bit counters are emptied; elements of a run at most.
constexpr std::size_t kMostCounted = std::size_t{1} << 30;

// Counters of columns, and the rows that wait to be counted in them.
//
// Columns stand for units: `inner` neighbors for one, all units in turn, and
// that again as often as there are columns left.
class Columns {
 public:
  Columns(DType dtype, UnitRange range, const Implementation& implementation,
          std::size_t n_columns, std::size_t inner, std::size_t first_unit,
          std::span<UnitCounts> units)
      : dtype_(dtype),
        range_(range),
        implementation_(implementation),
        n_columns_(n_columns),
        inner_(inner),
        first_unit_(first_unit),
        units_(units) {}
  ~Columns() {
    Count();
    Empty();
  }
  Columns(const Columns&) = delete;
  Columns& operator=(const Columns&) = delete;

  void AddRow(const void* row) {
    rows_[n_rows_++] = row;
    if (n_rows_ == kMostRows) Count();
  }

  // A row of the first `n_columns` columns only.
  void AddShortRow(const void* row, std::size_t n_columns) {
    implementation_.count_columns(&row, 1, n_columns, dtype_, range_,
                                  active_.data(), out_of_range_.data());
    ++n_counted_;
  }

 private:
  void Count() {
    implementation_.count_columns(rows_.data(), n_rows_, n_columns_, dtype_,
                                  range_, active_.data(), out_of_range_.data());
    n_counted_ += n_rows_;
    n_rows_ = 0;
    if (n_counted_ >= kMostCounted) Empty();
  }

  // Moves the counters to those of the units.
  void Empty() {
    std::size_t unit = first_unit_;
    for (std::size_t i = 0; i < n_columns_;) {
      const std::size_t end = std::min(i + inner_, n_columns_);
      for (; i < end; ++i) {
        units_[unit].active += active_[i];
        units_[unit].out_of_range += out_of_range_[i];
      }
      if (++unit == units_.size()) unit = 0;
    }
    active_.fill(0);
    out_of_range_.fill(0);
    n_counted_ = 0;
  }

  const DType dtype_;
  const UnitRange range_;
  const Implementation& implementation_;
  const std::size_t n_columns_;
  const std::size_t inner_;
  const std::size_t first_unit_;
  const std::span<UnitCounts> units_;
  std::array<const void*, kMostRows> rows_;
  std::size_t n_rows_ = 0;
  std::size_t n_counted_ = 0;
  std::array<std::uint32_t, kMostColumns> active_{};
  std::array<std::uint32_t, kMostColumns> out_of_range_{};
};

// Units lie side by side in memory, `inner` elements each: rows hold all units.
void CountByColumns(const TensorView& view, std::size_t axis, std::size_t inner,
                    UnitRange range, const Implementation& implementation,
                    std::span<UnitCounts> units) {
  const ElementWalk walk(view, axis);
  const std::size_t item = view.item_size;
  const std::size_t width = units.size() * inner;
  // How many rows begin at each place that the walk visits.
  const std::size_t n_rows = inner == 1 ? walk.row_extent() : 1;
  const std::int64_t stride = inner == 1 ? walk.row_stride() : 0;
  const bool is_dense =
      n_rows > 1 && stride == static_cast<std::int64_t>(width * item);
  if (is_dense && width < kFewColumns) {
    const std::size_t n_together = kMostColumns / 2 / width;
    Columns columns(view.dtype, range, implementation, n_together * width,
                    inner, 0, units);
    walk.ForEachRow([&](const std::byte* row) {
      std::size_t left = n_rows;
      for (; left >= n_together; left -= n_together) {
        columns.AddRow(row);
        row += n_together * width * item;
      }
      if (left > 0) columns.AddShortRow(row, left * width);
    });
    return;
  }
  const std::size_t tile = kMostColumns / inner * inner;
  for (std::size_t first = 0; first < width; first += tile) {
    Columns columns(view.dtype, range, implementation,
                    std::min(tile, width - first), inner, first / inner, units);
    walk.ForEachRow([&](const std::byte* row) {
      for (std::size_t i = 0; i < n_rows; ++i) {
        columns.AddRow(row + first * item +
                       stride * static_cast<std::int64_t>(i));
      }
    });
  }
}

void AddRuns(const void* data, std::size_t n, std::int64_t stride,
             const TensorView& view, UnitRange range,
             const Implementation& implementation,
             std::span<UnitCounts> units) {
  const auto* p = static_cast<const std::byte*>(data);
  while (n > 0) {
    const std::size_t n_now = std::min(n, kMostCounted);
    implementation.count_runs(p, n_now, stride, units.size(), view.dtype, range,
                              units.data());
    p += n_now * view.item_size;
    n -= n_now;
  }
}

bool AllAligned(const TensorView& view) {
  bool aligned = IsAligned(view.data, view.item_size);
  for (const std::int64_t stride : view.strides) {
    aligned &= stride % static_cast<std::int64_t>(view.item_size) == 0;
  }
  return aligned;
}

void CountWide(const TensorView& view, std::size_t axis, UnitRange range,
               const Implementation& implementation,
               std::span<UnitCounts> units) {
  const auto item = static_cast<std::int64_t>(view.item_size);
  const std::int64_t stride = StrideOf(view, axis);
  if (AllAligned(view)) {
    if (stride == item) {
      return CountByColumns(view, axis, 1, range, implementation, units);
    }
    const ElementWalk walk(view, axis);
    if (walk.row_stride() == item) {
      const std::size_t run = walk.row_extent();
      if (run < kShortRun && stride == static_cast<std::int64_t>(run) * item) {
        return CountByColumns(view, axis, run, range, implementation, units);
      }
      walk.ForEachRow([&](const std::byte* row) {
        AddRuns(row, run, stride, view, range, implementation, units);
      });
      return;
    }
  }
  TensorView unit_view = view;
  for (std::size_t u = 0; u < units.size(); ++u) {
    unit_view.data = static_cast<const std::byte*>(view.data) +
                     stride * static_cast<std::int64_t>(u);
    ForEachRun(ElementWalk(unit_view, axis), view.item_size,
               [&](const std::byte* data, std::size_t n) {
                 AddRuns(data, n, 0, view, range, implementation,
                         units.subspan(u, 1));
               });
  }
}

// What an element of 8 bits counts as, by its bits.
struct ByteClasses {
  std::array<std::uint8_t, 256> active;
  std::array<std::uint8_t, 256> out_of_range;
};

ByteClasses ClassesOf(DType dtype, UnitRange range) {
  const std::array<double, 256>& values = ByteValues(dtype);
  ByteClasses classes{};
  for (std::size_t b = 0; b < values.size(); ++b) {
    const double x = values[b];
    classes.active[b] = x > 0 ? 1 : 0;
    classes.out_of_range[b] = x >= range.low && x <= range.high ? 0 : 1;
  }
  return classes;
}

void CountNarrow(const TensorView& view, std::size_t axis, UnitRange range,
                 std::span<UnitCounts> units) {
  const ByteClasses classes = ClassesOf(view.dtype, range);
  const std::int64_t stride = StrideOf(view, axis);
  if (stride == 1) {
    const ElementWalk walk(view, axis);
    walk.ForEachRow([&](const std::byte* row) {
      for (std::size_t i = 0; i < walk.row_extent(); ++i) {
        for (std::size_t u = 0; u < units.size(); ++u) {
          const auto b = static_cast<std::size_t>(row[u]);
          units[u].active += classes.active[b];
          units[u].out_of_range += classes.out_of_range[b];
        }
        row += walk.row_stride();
      }
    });
    return;
  }
  TensorView unit_view = view;
  for (std::size_t u = 0; u < units.size(); ++u) {
    ByteCounts counts{};
    unit_view.data = static_cast<const std::byte*>(view.data) +
                     stride * static_cast<std::int64_t>(u);
    ForEachRun(ElementWalk(unit_view, axis), view.item_size,
               [&](const std::byte* data, std::size_t n) {
                 CountBytes(data, n, &counts);
               });
    for (std::size_t b = 0; b < counts.size(); ++b) {
      units[u].active += counts[b] * classes.active[b];
      units[u].out_of_range += counts[b] * classes.out_of_range[b];
    }
  }
}

}  // namespace

void CountUnitsWith(const TensorView& view, std::size_t axis, double low,
                    double high, const Implementation& implementation,
                    std::span<UnitCounts> units) {
  TDBG_DCHECK(HasStatistics(view.dtype));
  TDBG_DCHECK(view.device == DeviceKind::kCpu);
  TDBG_DCHECK(view.shape.size() <= ElementWalk::kMaxDimensions);
  TDBG_DCHECK(axis < view.shape.size());
  TDBG_DCHECK(units.size() == static_cast<std::size_t>(view.shape[axis]));
  TDBG_DCHECK(implementation.supported());
  const std::uint64_t count = view.count();
  if (count == 0) return;
  const FlushToZeroOff exact;
  for (UnitCounts& unit : units) unit.count += count / units.size();
  if (view.item_size == 1) return CountNarrow(view, axis, {low, high}, units);
  CountWide(view, axis, {low, high}, implementation, units);
}

void CountUnits(const TensorView& view, std::size_t axis, double low,
                double high, std::span<UnitCounts> units) {
  CountUnitsWith(view, axis, low, high, ImplementationInUse(), units);
}

}  // namespace tdbg
