#include "bindings/taker.h"

#include <limits>
#include <utility>

#include "bindings/convert.h"
#include "reducers/reduce.h"

namespace tdbg::bindings {
namespace {

// Less than this is reduced without giving the GIL away: to get it back costs
// more, and beside busy threads up to 5 ms.
constexpr std::uint64_t kQuickBytes = 128 << 10;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

Taker::Taker(Capture& capture, const py::tuple& types)
    : capture_(capture),
      exchange_(types),
      plain_(types.empty() ? py::object(py::none()) : py::object(types[0])) {}

bool Taker::Repeats(const Occasion& when, PyObject* tensor, const Job& job) {
  const Taken* const before =
      seen_.Find(tensor, job.read, {.definition = job.id, .site = when.site});
  const bool repeats =
      before != nullptr && capture_.Repeat(when.step, job.id, when.site,
                                           before->definition, before->site);
  if (repeats) ++n_repeated_;
  return repeats;
}

void Taker::TakeRest(const Occasion& when, const Job& job) {
  // Of several micro-batches the first one's values are kept.
  const bool takes_values =
      when.site.micro_batch == 0 &&
      ((job.wanted & want::kValues) != 0 ||
       ((job.wanted & want::kSmallValues) != 0 && job.read.count == 1));
  if (takes_values) capture_.Values(when.step, job.item(), when.site);
  if ((job.wanted & want::kHistogram) != 0) {
    capture_.CountHistogram(when.step, job.item(), when.site, when.scale);
  }
  if (job.units_id != 0) {
    capture_.UnitSummary(when.step, job.units_id, job.item(), when.site,
                         -kInfinity, kInfinity);
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
    if (!exchange_.Read(request.tensor, &job.read)) {
      scratch.jobs.pop_back();
      left.push_back(i);
      continue;
    }
    scratch.tensors.push_back(request.tensor);
    job.wanted = request.wanted;
    job.id = request.slot->IdOf(job.read, capture_);
    const std::size_t n = job.read.n_dimensions;
    if ((job.wanted & want::kUnits) != 0 && request.slot->has_units() &&
        n > 0) {
      job.units_id =
          request.slot->UnitsOf(job.read.extents[UnitAxis(n)], capture_);
    }
  }
  if (left.empty() || !all_or_none) TakeAll(when, &scratch);
  scratch.jobs.clear();
  scratch.tensors.clear();
  scratch.rows.clear();
  spare_ = std::move(scratch);
  return left;
}

void Taker::TakeAll(const Occasion& when, Scratch* scratch) {
  if (when.reuses) seen_.Begin(when.step, when.site.micro_batch);
  std::vector<CaptureItem>& rows = scratch->rows;
  std::uint64_t n_bytes = 0;
  bool is_quick = true;
  for (std::size_t i = 0; i < scratch->jobs.size(); ++i) {
    const Job& job = scratch->jobs[i];
    if ((job.wanted & ~want::kRows) != 0) is_quick = false;
    if ((job.wanted & want::kRows) == 0) continue;
    if (when.reuses && Repeats(when, scratch->tensors[i], job)) continue;
    n_bytes += job.read.n_bytes();
    rows.push_back(job.item());
  }
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
    for (const Job& job : scratch->jobs) TakeRest(when, job);
  }
}

}  // namespace tdbg::bindings
