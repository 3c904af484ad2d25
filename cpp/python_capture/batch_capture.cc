#include "python_capture/batch_capture.h"

#include <algorithm>
#include <utility>

#include "capture/device_capture.h"
#include "python_capture/gil.h"
#include "reducers/reduce.h"

namespace tdbg::python_capture {
namespace py = pybind11;

BatchCapture::BatchCapture(Capture& capture, const py::tuple& types)
    : capture_(capture),
      reader_(types),
      plain_(types.empty() ? py::object(py::none()) : py::object(types[0])) {}

bool BatchCapture::RepeatRow(const CaptureContext& context, PyObject* tensor,
                             const Job& job, void* stream) {
  const CachedRow* const before = row_cache_.FindOrAdd(
      tensor, job.tensor, {.definition = job.id, .site = context.site});
  if (before == nullptr) return false;
  const bool repeats =
      job.tensor.device == kHost
          ? capture_.Repeat(context.step, job.id, context.site,
                            before->definition, before->site)
          : capture_.devices().Repeat(context.step, job.id, context.site,
                                      before->definition, before->site,
                                      {job.tensor.device, stream});
  if (repeats) ++n_repeated_;
  return repeats;
}

bool BatchCapture::KeepsValues(const CaptureContext& context, const Job& job) {
  // Only the first micro-batch's values are kept.
  return context.site.micro_batch == 0 &&
         ((job.flags & capture_flags::kValues) != 0 ||
          ((job.flags & capture_flags::kSmallValues) != 0 &&
           job.tensor.count == 1));
}

void BatchCapture::ApplyLimit(const CaptureContext& context, TensorEntry* entry,
                              Job* job) {
  if (context.site.micro_batch != 0) return;
  if (entry->IsWithinLimit(job->tensor.n_bytes())) {
    job->flags |= capture_flags::kValues;
  } else {
    ++n_too_large_;
  }
}

void BatchCapture::TakeBesidesRow(const CaptureContext& context,
                                  const Job& job) {
  if (KeepsValues(context, job))
    capture_.Values(context.step, job.item(), context.site);
  if ((job.flags & capture_flags::kHistogram) != 0) {
    capture_.CountHistogram(context.step, job.item(), context.site,
                            context.scale);
  }
  if (job.unit_summary_id != 0) {
    capture_.UnitSummary(context.step, job.unit_summary_id, job.item(),
                         context.site, job.unit_spec);
  }
}

std::vector<std::size_t> BatchCapture::Take(
    const CaptureContext& context, std::span<const TensorRequest> requests,
    bool all_or_none) {
  std::vector<std::size_t> unhandled;
  // A call that comes while the GIL is released finds no spare memory and
  // allocates its own.
  Scratch scratch = std::exchange(spare_, {});
  scratch.jobs.reserve(requests.size());  // The items point into it.
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const TensorRequest& request = requests[i];
    Job& job = scratch.jobs.emplace_back();
    job.flags = request.flags;
    job.request = i;
    const bool is_read = Read(request.tensor, &job.tensor);
    if (is_read && (job.flags & capture_flags::kLimitedValues) != 0) {
      ApplyLimit(context, request.entry, &job);
    }
    if (!is_read || !CanTake(context, job)) {
      scratch.jobs.pop_back();
      unhandled.push_back(i);
      continue;
    }
    scratch.tensors.push_back(request.tensor);
    job.id = request.entry->IdOf(job.tensor, capture_);
    const std::size_t n = job.tensor.n_dimensions;
    if ((job.flags & capture_flags::kUnits) != 0 &&
        request.entry->has_units() && n > 0) {
      job.unit_spec = request.entry->unit_spec();
      job.unit_summary_id = request.entry->UnitSummaryIdOf(
          job.tensor.extents[job.unit_spec.Axis(n)], capture_);
    }
  }
  if (unhandled.empty() || !all_or_none) {
    TakeAll(context, &scratch, &unhandled);
    if (all_or_none && !unhandled.empty()) {
      for (const std::size_t request : unhandled) {
        const auto job =
            std::ranges::find(scratch.jobs, request, &Job::request);
        const bool is_known = job != scratch.jobs.end();
        capture_.writer().Refuse(context.step, 1, 0, is_known ? job->id : 0);
      }
      unhandled.clear();
    }
  }
  Spare(std::move(scratch));
  return unhandled;
}

bool BatchCapture::TakeNumbers(const CaptureContext& context, PyObject* numbers,
                               std::span<const TensorRequest> requests) {
  TensorDescriptor all;
  if (!array_reader_.Read(numbers, &all) || all.n_dimensions != 1 ||
      all.count != requests.size()) {
    return false;
  }
  Scratch scratch = std::exchange(spare_, {});
  scratch.jobs.reserve(requests.size());  // The items point into it.
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Job& job = scratch.jobs.emplace_back();
    job.flags = requests[i].flags;
    job.request = i;
    job.tensor.dtype = all.dtype;
    job.tensor.count = 1;
    job.tensor.data = static_cast<const std::byte*>(all.data) +
                      static_cast<std::ptrdiff_t>(i) * all.steps[0];
    scratch.tensors.push_back(numbers);
    if ((job.flags & capture_flags::kLimitedValues) != 0) {
      ApplyLimit(context, requests[i].entry, &job);
    }
    job.id = requests[i].entry->IdOf(job.tensor, capture_);
  }
  std::vector<std::size_t> unhandled;  // Stays empty: all lie on the CPU.
  TakeAll(context, &scratch, &unhandled);
  Spare(std::move(scratch));
  return true;
}

void BatchCapture::Spare(Scratch scratch) {
  scratch.jobs.clear();
  scratch.tensors.clear();
  scratch.rows.clear();
  spare_ = std::move(scratch);
}

void BatchCapture::WantCopies(std::span<TensorCopy> copies) {
  wanted_.clear();
  for (TensorCopy& copy : copies) wanted_.push_back(&copy);
  std::ranges::sort(wanted_, {}, [](const TensorCopy* copy) {
    return reinterpret_cast<std::uintptr_t>(copy->tensor.data);
  });
}

std::byte* BatchCapture::CopyOf(const CaptureContext& context,
                                const TensorDescriptor& tensor) {
  if (wanted_.empty() || context.scale != 1.0 || IsInert()) return nullptr;
  const auto address = [](const TensorCopy* copy) {
    return reinterpret_cast<std::uintptr_t>(copy->tensor.data);
  };
  const auto found = std::ranges::lower_bound(
      wanted_, reinterpret_cast<std::uintptr_t>(tensor.data), {}, address);
  if (found == wanted_.end()) return nullptr;
  TensorCopy& copy = **found;
  // Both are all of the memory, in whichever order of dimensions.
  if (copy.is_made || copy.tensor.data != tensor.data ||
      copy.tensor.dtype != tensor.dtype ||
      !std::ranges::equal(copy.tensor.shape(), tensor.shape()) ||
      !std::ranges::equal(copy.tensor.strides(), tensor.strides())) {
    return nullptr;
  }
  copy.is_made = true;
  return copy.data;
}

void BatchCapture::TakeDifferences(
    const CaptureContext& context,
    std::span<const DifferenceRequest> requests) {
  std::vector<Job> jobs;
  std::vector<CaptureItem> rows;
  std::vector<std::size_t> others;  // More than rows are captured of them.
  jobs.reserve(requests.size());    // The items point into it.
  std::uint64_t n_bytes = 0;
  for (const DifferenceRequest& request : requests) {
    Job& job = jobs.emplace_back();
    job.tensor = request.tensor;
    job.flags = request.flags;
    job.id = request.entry->IdOf(job.tensor, capture_);
    if ((job.flags & capture_flags::kLimitedValues) != 0) {
      ApplyLimit(context, request.entry, &job);
    }
    n_bytes += job.tensor.n_bytes();
    if (job.flags == capture_flags::kRows) {
      rows.push_back(job.item({.minus = request.before, .copy = nullptr}));
    } else {
      others.push_back(jobs.size() - 1);
    }
  }
  const auto take = [&] {
    for (const std::size_t place : others) {
      Job& made = jobs[place];
      const TensorView view{.data = made.tensor.data,
                            .dtype = made.tensor.dtype,
                            .item_size = ItemSize(made.tensor.dtype),
                            .shape = made.tensor.shape(),
                            .strides = made.tensor.strides()};
      SubtractInto(view, requests[place].before);
      made.tensor.data = requests[place].before;
      if ((made.flags & capture_flags::kRows) != 0) rows.push_back(made.item());
    }
    if (!rows.empty()) {
      capture_.Statistics(context.step, rows, context.site, context.scale);
    }
    for (const std::size_t place : others) TakeBesidesRow(context, jobs[place]);
  };
  if (others.empty() && n_bytes <= kQuickBytes &&
      capture_.HasRoom(rows.size())) {
    return take();
  }
  const ReleaseGil released;
  take();
}

std::vector<std::size_t> BatchCapture::BeginValues(
    std::int64_t step, std::span<const TensorRequest> requests) {
  struct Copy {
    TensorDescriptor tensor;
    std::uint32_t id = 0;
    std::size_t request = 0;
    DeviceStream where;
  };
  std::vector<Copy> copies;
  copies.reserve(requests.size());  // The items point into it.
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Copy copy{.tensor = {}, .id = 0, .request = i, .where = {}};
    TensorDescriptor& tensor = copy.tensor;
    if (!reader_.Read(requests[i].tensor, &tensor) || tensor.device == kHost ||
        !tensor.is_contiguous) {
      continue;
    }
    devices_.insert(tensor.device);
    copy.where.device = tensor.device;
    if (capture_.writer().inert() ||
        !capture_.devices().usable(tensor.device) ||
        !reader_.CurrentStream(tensor.device, &copy.where.stream)) {
      continue;
    }
    copy.id = requests[i].entry->IdOf(tensor, capture_);
    copies.push_back(copy);
  }
  std::vector<std::size_t> begun;
  if (copies.empty()) return begun;
  for (const Copy& copy : copies) unfenced_.insert(copy.where.device);
  // The call may wait for the queue, and the first one locks memory.
  const ReleaseGil released;
  for (const Copy& copy : copies) {
    const CaptureItem item{
        .definition = copy.id, .data = copy.tensor.data, .strides = {}};
    const DeviceAnswer answer =
        capture_.devices().Values(step, item, CallSite{}, copy.where);
    // A refused copy is counted by the device's capture.
    if (answer != DeviceAnswer::kUnhandled) begun.push_back(copy.request);
  }
  return begun;
}

void BatchCapture::Fence() {
  for (const int device : std::exchange(unfenced_, {})) {
    DeviceStream where{.device = device, .stream = nullptr};
    if (reader_.CurrentStream(device, &where.stream)) {
      capture_.devices().FenceRaw(where);
    }
  }
}

bool BatchCapture::ReadDivisor(PyObject* tensor,
                               CaptureContext* context) const {
  TensorDescriptor scale;
  if (!reader_.Read(tensor, &scale) || scale.device == kHost ||
      scale.count != 1 || scale.dtype != DType::kFloat32) {
    return false;
  }
  context->divisor = scale.data;
  context->divisor_device = scale.device;
  return true;
}

bool BatchCapture::CanTake(const CaptureContext& context, const Job& job) {
  const TensorDescriptor& read = job.tensor;
  if (read.device == kHost) return context.divisor == nullptr;
  devices_.insert(read.device);
  // Values that are not contiguous have to be copied on the device first.
  if (!read.is_contiguous && KeepsValues(context, job)) return false;
  return !capture_.writer().inert() && capture_.devices().usable(read.device) &&
         (context.divisor == nullptr || context.divisor_device == read.device);
}

void BatchCapture::TakeAll(const CaptureContext& context, Scratch* scratch,
                           std::vector<std::size_t>* unhandled) {
  if (context.reuses_rows)
    row_cache_.Begin(context.step, context.site.micro_batch);
  std::vector<CaptureItem>& rows = scratch->rows;
  std::uint64_t n_bytes = 0;
  bool is_quick = true;
  std::set<int> devices;
  for (std::size_t i = 0; i < scratch->jobs.size(); ++i) {
    const Job& job = scratch->jobs[i];
    if (job.tensor.device != kHost) {
      devices.insert(job.tensor.device);
      continue;
    }
    if ((job.flags & ~capture_flags::kRows) != 0) is_quick = false;
    if ((job.flags & capture_flags::kRows) == 0) continue;
    if (context.reuses_rows && RepeatRow(context, scratch->tensors[i], job))
      continue;
    n_bytes += job.tensor.n_bytes();
    // What has no definition is not reduced.
    std::byte* const copy = job.id == 0 ? nullptr : CopyOf(context, job.tensor);
    rows.push_back(job.item({.minus = nullptr, .copy = copy}));
  }
  for (const int device : devices)
    TakeOnDevice(context, *scratch, device, unhandled);
  if (is_quick && n_bytes <= kQuickBytes && capture_.HasRoom(rows.size())) {
    if (!rows.empty()) {
      capture_.Statistics(context.step, rows, context.site, context.scale);
    }
    return;
  }
  const ReleaseGil released;
  if (!rows.empty()) {
    capture_.Statistics(context.step, rows, context.site, context.scale);
  }
  if (!is_quick) {
    for (const Job& job : scratch->jobs) {
      if (job.tensor.device == kHost) TakeBesidesRow(context, job);
    }
  }
}

void BatchCapture::TakeOnDevice(const CaptureContext& context,
                                const Scratch& scratch, int device,
                                std::vector<std::size_t>* unhandled) {
  DeviceStream where{.device = device, .stream = nullptr};
  std::vector<const Job*> jobs;
  std::vector<CaptureItem> rows;
  std::vector<const Job*> row_jobs;
  const bool has_stream = reader_.CurrentStream(device, &where.stream);
  for (std::size_t i = 0; i < scratch.jobs.size(); ++i) {
    const Job& job = scratch.jobs[i];
    if (job.tensor.device != device) continue;
    if (!has_stream) {
      unhandled->push_back(job.request);
      continue;
    }
    jobs.push_back(&job);
    if ((job.flags & capture_flags::kRows) == 0) continue;
    if (context.reuses_rows &&
        RepeatRow(context, scratch.tensors[i], job, where.stream)) {
      continue;
    }
    rows.push_back(job.item());
    row_jobs.push_back(&job);
  }
  const DeviceScale scale{.factor = context.scale, .divisor = context.divisor};
  std::vector<std::size_t> unhandled_rows;
  // The calls may wait for the queue, and the first one for values locks
  // memory.
  const ReleaseGil released;
  DeviceCapture& devices = capture_.devices();
  if (!rows.empty()) {
    devices.Statistics(context.step, rows, context.site, scale, where,
                       &unhandled_rows);
  }
  std::set<std::size_t> unhandled_requests;
  for (const std::size_t i : unhandled_rows)
    unhandled_requests.insert(row_jobs[i]->request);
  bool copies = false;
  for (const Job* const job : jobs) {
    if (unhandled_requests.contains(job->request)) continue;  // Entirely.
    std::vector<DeviceAnswer> answers;
    if (KeepsValues(context, *job)) {
      answers.push_back(
          devices.Values(context.step, job->item(), context.site, where));
      copies |= answers.back() == DeviceAnswer::kCaptured;
    }
    if ((job->flags & capture_flags::kHistogram) != 0) {
      answers.push_back(devices.CountHistogram(context.step, job->item(),
                                               context.site, scale, where));
    }
    if (job->unit_summary_id != 0) {
      answers.push_back(devices.UnitSummary(context.step, job->unit_summary_id,
                                            job->item(), context.site,
                                            job->unit_spec, where));
    }
    const auto n_unhandled = static_cast<std::uint64_t>(
        std::ranges::count(answers, DeviceAnswer::kUnhandled));
    capture_.writer().Refuse(context.step, n_unhandled, 0, job->id);
  }
  // Later work on the stream may change or free the memory being copied.
  if (copies) devices.FenceRaw(where);
  unhandled->insert(unhandled->end(), unhandled_requests.begin(),
                    unhandled_requests.end());
}

}  // namespace tdbg::python_capture
