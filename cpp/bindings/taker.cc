#include "bindings/taker.h"

#include <algorithm>
#include <utility>

#include "bindings/convert.h"
#include "capture/device_capture.h"
#include "reducers/reduce.h"

namespace tdbg::bindings {
namespace {

// Less than this is reduced without giving the GIL away: to get it back costs
// more, and beside busy threads up to 5 ms.
constexpr std::uint64_t kQuickBytes = 128 << 10;

}  // namespace

Taker::Taker(Capture& capture, const py::tuple& types)
    : capture_(capture),
      exchange_(types),
      plain_(types.empty() ? py::object(py::none()) : py::object(types[0])) {}

bool Taker::Repeats(const Occasion& when, PyObject* tensor, const Job& job,
                    void* stream) {
  const Taken* const before =
      seen_.Find(tensor, job.read, {.definition = job.id, .site = when.site});
  if (before == nullptr) return false;
  const bool repeats =
      job.read.device == kHost
          ? capture_.Repeat(when.step, job.id, when.site, before->definition,
                            before->site)
          : capture_.devices().Repeat(when.step, job.id, when.site,
                                      before->definition, before->site,
                                      {job.read.device, stream});
  if (repeats) ++n_repeated_;
  return repeats;
}

bool Taker::WantsValues(const Occasion& when, const Job& job) {
  // Of several micro-batches the first one's values are kept.
  return when.site.micro_batch == 0 &&
         ((job.wanted & want::kValues) != 0 ||
          ((job.wanted & want::kSmallValues) != 0 && job.read.count == 1));
}

void Taker::Limit(const Occasion& when, Slot* slot, Job* job) {
  if (when.site.micro_batch != 0) return;
  if (slot->Keeps(job->read.n_bytes())) {
    job->wanted |= want::kValues;
  } else {
    ++n_too_large_;
  }
}

void Taker::TakeRest(const Occasion& when, const Job& job) {
  if (WantsValues(when, job)) capture_.Values(when.step, job.item(), when.site);
  if ((job.wanted & want::kHistogram) != 0) {
    capture_.CountHistogram(when.step, job.item(), when.site, when.scale);
  }
  if (job.units_id != 0) {
    capture_.UnitSummary(when.step, job.units_id, job.item(), when.site,
                         job.question);
  }
}

std::vector<std::size_t> Taker::Take(const Occasion& when,
                                     std::span<const Request> requests,
                                     bool all_or_none) {
  std::vector<std::size_t> left;
  // Whoever calls while the GIL is away finds none to use, and makes its own.
  Scratch scratch = std::exchange(spare_, {});
  scratch.jobs.reserve(requests.size());  // The items point into it.
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Request& request = requests[i];
    Job& job = scratch.jobs.emplace_back();
    job.wanted = request.wanted;
    job.request = i;
    const bool is_read = exchange_.Read(request.tensor, &job.read);
    if (is_read && (job.wanted & want::kLimitedValues) != 0) {
      Limit(when, request.slot, &job);
    }
    if (!is_read || !CanTake(when, job)) {
      scratch.jobs.pop_back();
      left.push_back(i);
      continue;
    }
    scratch.tensors.push_back(request.tensor);
    job.id = request.slot->IdOf(job.read, capture_);
    const std::size_t n = job.read.n_dimensions;
    if ((job.wanted & want::kUnits) != 0 && request.slot->has_units() &&
        n > 0) {
      job.question = request.slot->question();
      job.units_id = request.slot->UnitsOf(
          job.read.extents[job.question.Axis(n)], capture_);
    }
  }
  if (left.empty() || !all_or_none) {
    TakeAll(when, &scratch, &left);
    if (all_or_none && !left.empty()) {
      capture_.writer().Refuse(when.step, left.size(), 0);
      left.clear();
    }
  }
  scratch.jobs.clear();
  scratch.tensors.clear();
  scratch.rows.clear();
  spare_ = std::move(scratch);
  return left;
}

std::vector<std::size_t> Taker::BeginValues(std::int64_t step,
                                            std::span<const Request> requests) {
  struct Copy {
    Exchanged read;
    std::uint32_t id = 0;
    std::size_t request = 0;
    DeviceStream where;
  };
  std::vector<Copy> copies;
  copies.reserve(requests.size());  // The items point into it.
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Copy copy{.read = {}, .id = 0, .request = i, .where = {}};
    Exchanged& read = copy.read;
    if (!exchange_.Read(requests[i].tensor, &read) || read.device == kHost ||
        !read.is_contiguous) {
      continue;
    }
    devices_.insert(read.device);
    copy.where.device = read.device;
    if (capture_.writer().inert() || !capture_.devices().usable(read.device) ||
        !exchange_.CurrentStream(read.device, &copy.where.stream)) {
      continue;
    }
    copy.id = requests[i].slot->IdOf(read, capture_);
    copies.push_back(copy);
  }
  std::vector<std::size_t> begun;
  if (copies.empty()) return begun;
  for (const Copy& copy : copies) unfenced_.insert(copy.where.device);
  // The queue may be waited for, and the first call locks memory.
  const ReleaseGil released;
  for (const Copy& copy : copies) {
    const CaptureItem item{
        .definition = copy.id, .data = copy.read.data, .strides = {}};
    const DeviceAnswer answer =
        capture_.devices().Values(step, item, CallSite{}, copy.where);
    // What was refused is counted.
    if (answer != DeviceAnswer::kLeft) begun.push_back(copy.request);
  }
  return begun;
}

void Taker::Fence() {
  for (const int device : std::exchange(unfenced_, {})) {
    DeviceStream where{.device = device, .stream = nullptr};
    if (exchange_.CurrentStream(device, &where.stream)) {
      capture_.devices().FenceRaw(where);
    }
  }
}

bool Taker::ReadDivisor(PyObject* tensor, Occasion* when) const {
  Exchanged read;
  if (!exchange_.Read(tensor, &read) || read.device == kHost ||
      read.count != 1 || read.dtype != DType::kFloat32) {
    return false;
  }
  when->divisor = read.data;
  when->divisor_device = read.device;
  return true;
}

bool Taker::CanTake(const Occasion& when, const Job& job) {
  const Exchanged& read = job.read;
  if (read.device == kHost) return when.divisor == nullptr;
  devices_.insert(read.device);
  // Values that are not contiguous have to be copied on the device first.
  if (!read.is_contiguous && WantsValues(when, job)) return false;
  return !capture_.writer().inert() && capture_.devices().usable(read.device) &&
         (when.divisor == nullptr || when.divisor_device == read.device);
}

void Taker::TakeAll(const Occasion& when, Scratch* scratch,
                    std::vector<std::size_t>* left) {
  if (when.reuses) seen_.Begin(when.step, when.site.micro_batch);
  std::vector<CaptureItem>& rows = scratch->rows;
  std::uint64_t n_bytes = 0;
  bool is_quick = true;
  std::set<int> devices;
  for (std::size_t i = 0; i < scratch->jobs.size(); ++i) {
    const Job& job = scratch->jobs[i];
    if (job.read.device != kHost) {
      devices.insert(job.read.device);
      continue;
    }
    if ((job.wanted & ~want::kRows) != 0) is_quick = false;
    if ((job.wanted & want::kRows) == 0) continue;
    if (when.reuses && Repeats(when, scratch->tensors[i], job)) continue;
    n_bytes += job.read.n_bytes();
    rows.push_back(job.item());
  }
  for (const int device : devices) TakeOnDevice(when, *scratch, device, left);
  if (is_quick && n_bytes <= kQuickBytes && capture_.HasRoom(rows.size())) {
    if (!rows.empty()) {
      capture_.Statistics(when.step, rows, when.site, when.scale);
    }
    return;
  }
  const ReleaseGil released;
  if (!rows.empty()) {
    capture_.Statistics(when.step, rows, when.site, when.scale);
  }
  if (!is_quick) {
    for (const Job& job : scratch->jobs) {
      if (job.read.device == kHost) TakeRest(when, job);
    }
  }
}

void Taker::TakeOnDevice(const Occasion& when, const Scratch& scratch,
                         int device, std::vector<std::size_t>* left) {
  DeviceStream where{.device = device, .stream = nullptr};
  std::vector<const Job*> jobs;
  std::vector<CaptureItem> rows;
  std::vector<const Job*> of_rows;
  const bool has_stream = exchange_.CurrentStream(device, &where.stream);
  for (std::size_t i = 0; i < scratch.jobs.size(); ++i) {
    const Job& job = scratch.jobs[i];
    if (job.read.device != device) continue;
    if (!has_stream) {
      left->push_back(job.request);
      continue;
    }
    jobs.push_back(&job);
    if ((job.wanted & want::kRows) == 0) continue;
    if (when.reuses && Repeats(when, scratch.tensors[i], job, where.stream)) {
      continue;
    }
    rows.push_back(job.item());
    of_rows.push_back(&job);
  }
  const DeviceScale scale{.factor = when.scale, .divisor = when.divisor};
  std::vector<std::size_t> left_rows;
  // The queue may be waited for, and the first call for values locks memory.
  const ReleaseGil released;
  DeviceCapture& devices = capture_.devices();
  if (!rows.empty()) {
    devices.Statistics(when.step, rows, when.site, scale, where, &left_rows);
  }
  std::set<std::size_t> is_left;
  for (const std::size_t i : left_rows) is_left.insert(of_rows[i]->request);
  bool copies = false;
  for (const Job* const job : jobs) {
    if (is_left.contains(job->request)) continue;  // All of it.
    std::vector<DeviceAnswer> answers;
    if (WantsValues(when, *job)) {
      answers.push_back(
          devices.Values(when.step, job->item(), when.site, where));
      copies |= answers.back() == DeviceAnswer::kTaken;
    }
    if ((job->wanted & want::kHistogram) != 0) {
      answers.push_back(devices.CountHistogram(when.step, job->item(),
                                               when.site, scale, where));
    }
    if (job->units_id != 0) {
      answers.push_back(devices.UnitSummary(when.step, job->units_id,
                                            job->item(), when.site,
                                            job->question, where));
    }
    const auto n_left = static_cast<std::uint64_t>(
        std::ranges::count(answers, DeviceAnswer::kLeft));
    if (n_left > 0) capture_.writer().Refuse(when.step, n_left, 0);
  }
  // What comes next on the stream may change or free what is being copied.
  if (copies) devices.FenceRaw(where);
  left->insert(left->end(), is_left.begin(), is_left.end());
}

}  // namespace tdbg::bindings
