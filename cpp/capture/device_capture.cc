#include "capture/device_capture.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "capture/captured_view.h"
#include "capture/device_engine.h"
#include "reducers/cuda/entries.h"
#include "reducers/reduce.h"

namespace tdbg {
namespace {

bool IsFloat(DType dtype) {
  return ExtremeClassOf(dtype) == ExtremeClass::kFloat64;
}

// Of the writer, which counts what it does not take.
DeviceAnswer Answer(bool is_taken) {
  return is_taken ? DeviceAnswer::kCaptured : DeviceAnswer::kRefused;
}

bool IsRescaled(const DeviceScale& scale) {
  return scale.factor != 1.0 || scale.divisor != nullptr;
}

}  // namespace

// One for each device that was asked for.
class DeviceCapture::Engines {
 public:
  explicit Engines(const cuda::Driver* driver) : driver_(driver) {}

  std::shared_ptr<DeviceEngine> Find(int device, bool open) {
    MutexLock lock(mutex_);
    std::shared_ptr<DeviceEngine>& engine = by_device_[device];
    if (engine == nullptr && open) {
      engine = DeviceEngine::Open(driver_ != nullptr
                                      ? Result<const cuda::Driver*>(driver_)
                                      : cuda::Driver::Installed(),
                                  device, staging_lock_);
    }
    return engine;
  }
  std::vector<std::shared_ptr<DeviceEngine>> All() {
    MutexLock lock(mutex_);
    std::vector<std::shared_ptr<DeviceEngine>> all;
    for (const auto& [device, engine] : by_device_) {
      if (engine != nullptr) all.push_back(engine);
    }
    return all;
  }

 private:
  const cuda::Driver* const driver_;
  const std::shared_ptr<StagingLock> staging_lock_ =
      std::make_shared<StagingLock>();
  Mutex mutex_;
  std::map<int, std::shared_ptr<DeviceEngine>> by_device_
      TDBG_GUARDED_BY(mutex_);
};

DeviceCapture::DeviceCapture(Writer* writer, const cuda::Driver* driver)
    : writer_(writer), engines_(std::make_unique<Engines>(driver)) {}

DeviceCapture::~DeviceCapture() {
  // A child's copy: the driver does not survive a fork, and its locks are the
  // parent's.
  if (writer_->inert()) (void)engines_.release();
}

std::shared_ptr<DeviceEngine> DeviceCapture::EngineFor(int device) {
  return engines_->Find(device, true);
}

bool DeviceCapture::usable(int device) {
  return !writer_->inert() && EngineFor(device)->is_usable();
}

DeviceState DeviceCapture::state(int device) {
  if (writer_->inert()) return {};
  const auto engine = engines_->Find(device, false);
  return engine == nullptr ? DeviceState{} : engine->state();
}

// Hands records over, without a lock: that may wait for room.
template <typename List>
void DeviceCapture::Offer(List* ready) {
  for (auto& record : *ready) {
    (void)writer_->AddRowsLater(
        record.step, record.n_rows,
        [&](std::span<std::byte>) { return std::move(record.completion); },
        [&] { return record.completion->Definitions(); });
  }
}

// --- Statistics --------------------------------------------------------------

void DeviceCapture::Statistics(std::int64_t step,
                               std::span<const CaptureItem> items,
                               CallSite site, DeviceScale scale,
                               DeviceStream where,
                               std::vector<std::size_t>* left) {
  if (writer_->inert()) return;
  std::vector<DeviceEngine::Launch> launches;
  std::vector<std::size_t> indices;  // Of their items.
  launches.reserve(items.size());
  indices.reserve(items.size());
  const auto engine = EngineFor(where.device);
  for (std::size_t i = 0; i < items.size(); ++i) {
    TensorView view;
    if (!ViewOf(*writer_, items[i], &view) || !HasStatistics(view.dtype)) {
      RefuseTensor(writer_, step, items[i].definition);
      continue;
    }
    const DeviceScale used = IsFloat(view.dtype) ? scale : DeviceScale();
    DeviceEngine::Launch launch;
    if (!cuda::ToTensorEntry(view, used.factor, used.divisor, &launch.entry)) {
      left->push_back(i);
      continue;
    }
    launch.target = {.definition = items[i].definition,
                     .site = site,
                     .flags = IsRescaled(used) ? kRescaled : 0,
                     .dtype = view.dtype,
                     .count = launch.entry.count};
    launches.push_back(launch);
    indices.push_back(i);
  }
  if (launches.empty()) return;
  DeviceEngine::ReadyList ready;
  const DeviceEngine::Outcome outcome =
      engine->AddRows(step, launches, where.stream, &ready);
  Offer(&ready);
  for (std::size_t i = outcome.n_taken; i < indices.size(); ++i) {
    if (outcome.others == DeviceAnswer::kUnhandled) {
      left->push_back(indices[i]);
    } else {
      RefuseTensor(writer_, step, items[indices[i]].definition);
    }
  }
  std::sort(left->begin(), left->end());
}

bool DeviceCapture::Repeat(std::int64_t step, std::uint32_t definition,
                           CallSite site, std::uint32_t of, CallSite of_site,
                           DeviceStream where) {
  if (writer_->inert()) return false;
  const auto engine = engines_->Find(where.device, false);
  return engine != nullptr &&
         engine->Repeat(step, definition, site, of, of_site, where.stream);
}

void DeviceCapture::EndStep(std::int64_t step) {
  if (writer_->inert()) return;
  DeviceEngine::ReadyList ready;
  for (const auto& engine : engines_->All()) engine->EndStep(step, &ready);
  Offer(&ready);
}

void DeviceCapture::EndAllSteps() {
  if (writer_->inert()) return;
  DeviceEngine::ReadyList ready;
  for (const auto& engine : engines_->All()) engine->EndAllSteps(&ready);
  Offer(&ready);
}

std::uint64_t DeviceCapture::CaptureId(DeviceStream where) {
  if (writer_->inert()) return 0;
  return EngineFor(where.device)->CaptureId(where.stream);
}

bool DeviceCapture::Replayed(std::uint64_t capture_id, std::int64_t step,
                             DeviceStream where) {
  if (writer_->inert()) return false;
  DeviceEngine::ReadyList ready;
  const bool is_known =
      EngineFor(where.device)->Replayed(capture_id, step, where.stream, &ready);
  Offer(&ready);
  return is_known;
}

// --- Counts and values -------------------------------------------------------

DeviceAnswer DeviceCapture::Refuse(std::int64_t step,
                                   std::uint32_t definition) {
  RefuseTensor(writer_, step, definition);
  return DeviceAnswer::kRefused;
}

DeviceAnswer DeviceCapture::UnitSummary(std::int64_t step,
                                        std::uint32_t unit_definition,
                                        const CaptureItem& item, CallSite site,
                                        UnitSummarySpec spec,
                                        DeviceStream where) {
  if (writer_->inert()) return DeviceAnswer::kRefused;
  TensorView view;
  if (!ViewOf(*writer_, item, &view) || !HasStatistics(view.dtype) ||
      view.shape.empty()) {
    return Refuse(step, unit_definition);
  }
  cuda::UnitEntry entry;
  if (view.count() == 0 ||
      !cuda::ToUnitEntry(view, spec.Axis(view.shape.size()), spec.CountedLow(),
                         spec.CountedHigh(), &entry)) {
    return DeviceAnswer::kUnhandled;
  }
  // The table has the size that the definition says, or it is refused.
  const Definition* units = writer_->definition(unit_definition);
  if (units == nullptr || units->dtype != DType::kUInt64 ||
      units->shape != std::vector<std::int64_t>{
                          3, static_cast<std::int64_t>(entry.n_units)}) {
    return Refuse(step, unit_definition);
  }
  std::unique_ptr<Fetch> fetch;
  const DeviceAnswer answer =
      EngineFor(where.device)->CountUnits(entry, where.stream, &fetch);
  if (answer == DeviceAnswer::kRefused) return Refuse(step, unit_definition);
  if (answer != DeviceAnswer::kCaptured) return answer;
  const bool is_taken = writer_->AddTensorLater(
      step, unit_definition,
      [&](std::span<std::byte>) {
        return UnitsFrom(std::move(fetch), entry.n_units, entry.count_per_unit,
                         spec);
      },
      site.call, site.micro_batch);
  return Answer(is_taken);
}

DeviceAnswer DeviceCapture::CountHistogram(std::int64_t step,
                                           const CaptureItem& item,
                                           CallSite site, DeviceScale scale,
                                           DeviceStream where) {
  if (writer_->inert()) return DeviceAnswer::kRefused;
  TensorView view;
  if (!ViewOf(*writer_, item, &view) || !HasStatistics(view.dtype)) {
    return Refuse(step, item.definition);
  }
  if (view.count() == 0) {
    return Answer(writer_->AddHistogram(step, {.definition = item.definition,
                                               .call = site.call,
                                               .micro_batch = site.micro_batch,
                                               .keys = {},
                                               .counts = {}}));
  }
  const DeviceScale used = IsFloat(view.dtype) ? scale : DeviceScale();
  cuda::BinEntry entry;
  if (!cuda::ToBinEntry(view, used.factor, used.divisor, &entry)) {
    return DeviceAnswer::kUnhandled;
  }
  std::unique_ptr<Fetch> fetch;
  const DeviceAnswer answer =
      EngineFor(where.device)->CountBins(entry, where.stream, &fetch);
  if (answer == DeviceAnswer::kRefused) return Refuse(step, item.definition);
  if (answer != DeviceAnswer::kCaptured) return answer;
  const bool is_taken = writer_->AddHistogramLater(
      step, item.definition,
      HistogramBytes(std::min<std::uint64_t>(entry.count, cuda::kBins)),
      [&](std::span<std::byte>) {
        return BinsFrom(std::move(fetch), {.definition = item.definition,
                                           .call = site.call,
                                           .micro_batch = site.micro_batch,
                                           .keys = {},
                                           .counts = {}});
      },
      site.call, site.micro_batch);
  return Answer(is_taken);
}

DeviceAnswer DeviceCapture::Values(std::int64_t step, const CaptureItem& item,
                                   CallSite site, DeviceStream where) {
  if (writer_->inert()) return DeviceAnswer::kRefused;
  TensorView view;
  if (!ViewOf(*writer_, item, &view)) return Refuse(step, item.definition);
  if (view.count() == 0) {
    return Answer(writer_->AddTensor(step, item.definition, view, site.call,
                                     site.micro_batch));
  }
  const auto engine = EngineFor(where.device);
  if (!IsContiguous(view) || !engine->IsFree(where.stream)) {
    return DeviceAnswer::kUnhandled;
  }
  if (!engine->CanCopy(writer_->staging())) {
    engine->CountRefused();
    return Refuse(step, item.definition);
  }
  const bool is_taken = writer_->AddTensorLater(
      step, item.definition,
      [&](std::span<std::byte> bytes) {
        return engine->Copy(view.data, bytes, where.stream);
      },
      site.call, site.micro_batch);
  return Answer(is_taken);
}

void DeviceCapture::FenceRaw(DeviceStream where) {
  if (writer_->inert()) return;
  const auto engine = engines_->Find(where.device, false);
  if (engine != nullptr) engine->Fence(where.stream);
}

}  // namespace tdbg
