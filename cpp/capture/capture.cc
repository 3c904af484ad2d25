#include "capture/capture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "capture/captured_view.h"
#include "capture/device_capture.h"
#include "reducers/histogram.h"
#include "reducers/reduce.h"

namespace tdbg {

Result<std::unique_ptr<Capture>> Capture::Open(const WriterOptions& options,
                                               const CaptureOptions& own) {
  Result<std::unique_ptr<Writer>> writer = Writer::Open(options);
  if (!writer.ok()) return writer.status();
  return std::unique_ptr<Capture>(new Capture(std::move(writer).value(), own));
}

Capture::Capture(std::unique_ptr<Writer> writer, const CaptureOptions& own)
    : writer_(std::move(writer)), own_(own) {}

Capture::~Capture() { (void)Close(Writer::kCloseTimeout); }

void Capture::Statistics(std::int64_t step, std::span<const CaptureItem> items,
                         CallSite site, double scale) {
  TDBG_DCHECK(std::isfinite(scale) && scale != 0);
  if (writer_->inert()) return;
  std::vector<Row> rows;
  rows.reserve(items.size());
  for (const CaptureItem& item : items) {
    TensorView view;
    if (!ViewOf(*writer_, item, &view) || !HasStatistics(view.dtype)) {
      RefuseTensor(writer_.get(), step, item.definition);
      continue;
    }
    const bool is_float = ExtremeClassOf(view.dtype) == ExtremeClass::kFloat64;
    const double factor = is_float ? scale : 1.0;
    rows.push_back({.definition = item.definition,
                    .call = site.call,
                    .micro_batch = site.micro_batch,
                    .flags = factor == 1.0 ? 0 : kRescaled,
                    .summary = Reduce(view, {.scale = factor,
                                             .precise = own_.precise,
                                             .n_threads = own_.n_threads,
                                             .beside = item.beside})});
  }
  Keep(step, rows);
}

void Capture::AddRows(std::int64_t step, std::span<const Row> rows) {
  if (writer_->inert()) return;
  std::vector<Row> kept;
  kept.reserve(rows.size());
  for (const Row& row : rows) {
    const Definition* const definition = writer_->definition(row.definition);
    if (definition == nullptr || !HasStatistics(definition->dtype)) {
      RefuseTensor(writer_.get(), step, row.definition);
      continue;
    }
    Row& own = kept.emplace_back(row);
    if (row.summary.count == 0) {
      own.summary = Summary::Empty(ExtremeClassOf(definition->dtype));
    }
  }
  Keep(step, kept);
}

void Capture::Keep(std::int64_t step, std::span<const Row> rows) {
  if (rows.empty()) return;
  bool is_much = false;
  {
    MutexLock lock(mutex_);
    std::vector<Row>& known = RowsOf(step);
    known.insert(known.end(), rows.begin(), rows.end());
    n_rows_ += rows.size();
    is_much = n_rows_ > kMaxRows;
  }
  if (!is_much) return;
  MutexLock order(order_mutex_);
  WriteRows(step);
}

bool Capture::HasRoom(std::size_t n_rows) {
  if (writer_->inert()) return true;
  MutexLock lock(mutex_);
  return n_rows_ + n_rows <= kMaxRows;
}

bool Capture::Repeat(std::int64_t step, std::uint32_t definition, CallSite site,
                     std::uint32_t of, CallSite of_site) {
  if (writer_->inert()) return false;
  MutexLock lock(mutex_);
  const auto found = rows_.find(step);
  if (found == rows_.end()) return false;
  std::vector<Row>& rows = found->second;
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    if (row->definition != of || row->call != of_site.call ||
        row->micro_batch != of_site.micro_batch) {
      continue;
    }
    Row again = *row;
    again.definition = definition;
    again.call = site.call;
    again.micro_batch = site.micro_batch;
    rows.push_back(again);
    ++n_rows_;
    return true;
  }
  return false;
}

bool Capture::CountHistogram(std::int64_t step, const CaptureItem& item,
                             CallSite site, double scale) {
  if (writer_->inert()) return false;
  TensorView view;
  if (!ViewOf(*writer_, item, &view) || !HasStatistics(view.dtype)) {
    RefuseTensor(writer_.get(), step, item.definition);
    return false;
  }
  const bool is_float = ExtremeClassOf(view.dtype) == ExtremeClass::kFloat64;
  BinCounts bins = CountBins(view, is_float ? scale : 1.0);
  return writer_->AddHistogram(step, {.definition = item.definition,
                                      .call = site.call,
                                      .micro_batch = site.micro_batch,
                                      .keys = std::move(bins.keys),
                                      .counts = std::move(bins.counts)});
}

bool Capture::Values(std::int64_t step, const CaptureItem& item,
                     CallSite site) {
  if (writer_->inert()) return false;
  TensorView view;
  if (!ViewOf(*writer_, item, &view)) {
    RefuseTensor(writer_.get(), step, item.definition);
    return false;
  }
  return writer_->AddTensor(step, item.definition, view, site.call,
                            site.micro_batch, 0,
                            ZeroShare(step, item.definition, site));
}

float Capture::ZeroShare(std::int64_t step, std::uint32_t definition,
                         CallSite site) {
  MutexLock lock(mutex_);
  const auto found = rows_.find(step);
  if (found == rows_.end()) return Writer::kUnknownShare;
  // Values follow in the order of their statistics, so that the row is mostly
  // the one behind the last that was found; all are looked at once a step.
  const std::vector<Row>& rows = found->second;
  constexpr std::size_t kNear = 8;
  const std::size_t n =
      searched_step_ == step ? std::min(kNear, rows.size()) : rows.size();
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = (next_share_ + i) % rows.size();
    if (i == kNear) searched_step_ = step;
    const Row& row = rows[at];
    if (row.definition != definition || row.call != site.call ||
        row.micro_batch != site.micro_batch || row.summary.count == 0) {
      continue;
    }
    next_share_ = at + 1;
    return static_cast<float>(static_cast<double>(row.summary.zero) /
                              static_cast<double>(row.summary.count));
  }
  return Writer::kUnknownShare;
}

bool Capture::UnitSummary(std::int64_t step, std::uint32_t unit_definition,
                          const CaptureItem& item, CallSite site,
                          UnitSummarySpec spec) {
  if (writer_->inert()) return false;
  TensorView view;
  if (!ViewOf(*writer_, item, &view) || !HasStatistics(view.dtype) ||
      view.shape.empty()) {
    RefuseTensor(writer_.get(), step, unit_definition);
    return false;
  }
  const std::size_t axis = spec.Axis(view.shape.size());
  const auto n_units = static_cast<std::size_t>(view.shape[axis]);
  std::vector<UnitCounts> units(n_units);
  CountUnits(view, axis, spec.CountedLow(), spec.CountedHigh(), units);

  std::vector<std::uint64_t> counts(3 * n_units);
  for (std::size_t i = 0; i < n_units; ++i) {
    const UnitCounts& unit = units[i];
    counts[i] =
        spec.rows_are_units ? unit.active + unit.out_of_range : unit.active;
    counts[n_units + i] = spec.rows_are_units ? 0 : unit.out_of_range;
    counts[2 * n_units + i] = units[i].count;
  }
  const std::array<std::int64_t, 2> shape = {
      3, static_cast<std::int64_t>(n_units)};
  const TensorView table{.data = counts.data(),
                         .dtype = DType::kUInt64,
                         .item_size = sizeof(std::uint64_t),
                         .shape = shape,
                         .strides = {}};
  return writer_->AddTensor(step, unit_definition, table, site.call,
                            site.micro_batch);
}

DeviceCapture& Capture::devices() {
  TDBG_DCHECK(!writer_->inert());
  if (!has_devices_.load(std::memory_order_acquire)) {
    MutexLock lock(mutex_);
    if (devices_ == nullptr) {
      devices_ = std::make_unique<DeviceCapture>(writer_.get());
    }
    has_devices_.store(true, std::memory_order_release);
  }
  return *devices_;
}

bool Capture::EndStep(const StepRecord& step) {
  if (writer_->inert()) return false;
  MutexLock order(order_mutex_);
  const bool has_devices = has_devices_.load(std::memory_order_acquire);
  for (const std::int64_t each : {last_ended_, step.step}) {
    if (each == kNoStep) continue;
    WriteRows(each);
    if (has_devices) devices_->EndStep(each);
  }
  last_ended_ = step.step;
  return writer_->EndStep(step);
}

void Capture::WriteRows(std::int64_t step) {
  std::vector<Row> rows;
  {
    MutexLock lock(mutex_);
    if (auto node = rows_.extract(step); !node.empty()) {
      rows = std::move(node.mapped());
      n_rows_ -= rows.size();
    }
  }
  (void)writer_->AddRows(step, rows);
  rows.clear();
  MutexLock lock(mutex_);
  if (rows.capacity() > spare_.capacity()) spare_ = std::move(rows);
}

std::vector<Row>& Capture::RowsOf(std::int64_t step) {
  const auto [found, is_new] = rows_.try_emplace(step);
  if (is_new) found->second = std::exchange(spare_, {});
  return found->second;
}

void Capture::WriteAllRows() {
  MutexLock order(order_mutex_);
  std::map<std::int64_t, std::vector<Row>> rows;
  {
    MutexLock lock(mutex_);
    rows = std::exchange(rows_, {});
    n_rows_ = 0;
  }
  for (const auto& [step, of_step] : rows) {
    (void)writer_->AddRows(step, of_step);
  }
  if (has_devices_.load(std::memory_order_acquire)) devices_->EndAllSteps();
}

Status Capture::Flush(bool durable, std::chrono::milliseconds timeout) {
  if (!writer_->inert()) WriteAllRows();
  return writer_->Flush(durable, timeout);
}

Status Capture::Close(std::chrono::milliseconds timeout) {
  if (!writer_->inert()) WriteAllRows();
  return writer_->Close(timeout);
}

}  // namespace tdbg
