#include "python_capture/update_capture.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/stream_copy.h"
#include "python_capture/gil.h"
#include "reducers/element_walk.h"
#include "reducers/reduce.h"

namespace tdbg::python_capture {
namespace {

namespace py = pybind11;

// Copies begin at cache lines.
constexpr std::uint64_t kAlignment = 64;

// So much memory is kept for good: to ask for it again takes longer than to
// capture what it is for.
constexpr std::uint64_t kLittleMemory = 1 << 20;

// Whether differences of such a tensor can be taken where it lies.
bool HasPlainMemory(const TensorDescriptor& tensor) {
  if (tensor.device != kHost || !HasDifference(tensor.dtype)) return false;
  if (tensor.count == 0) return true;
  const TensorView view{.data = tensor.data,
                        .dtype = tensor.dtype,
                        .item_size = ItemSize(tensor.dtype),
                        .shape = tensor.shape(),
                        .strides = tensor.strides()};
  const std::byte* first = nullptr;
  return IsDense(view, &first) && first == tensor.data &&
         IsAligned(first, view.item_size);
}

bool AreLaidOutAlike(const TensorDescriptor& a, const TensorDescriptor& b) {
  return a.dtype == b.dtype && std::ranges::equal(a.shape(), b.shape()) &&
         std::ranges::equal(a.strides(), b.strides());
}

}  // namespace

UpdateCapture::UpdateCapture(py::object batch)
    : owner_(std::move(batch)), batch_(owner_.cast<BatchCapture&>()) {}

UpdateCapture::~UpdateCapture() { Forget(); }

std::vector<std::size_t> UpdateCapture::Begin(const py::tuple& parameters) {
  batch_.WantCopies({});
  parameters_ = parameters;
  taken_.clear();
  copies_.clear();
  std::vector<std::size_t> others;
  std::uint64_t n_bytes = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    TensorCopy copy;
    if (!batch_.Read(PyTuple_GET_ITEM(parameters.ptr(), i), &copy.tensor) ||
        !HasPlainMemory(copy.tensor)) {
      others.push_back(i);
      continue;
    }
    n_bytes += (copy.tensor.n_bytes() + kAlignment - 1) / kAlignment;
    copies_.push_back(copy);
    taken_.push_back(i);
  }
  n_bytes *= kAlignment;
  if (n_bytes > memory_.size()) {
    memory_ = {};
    Result<HugeMemory> memory = HugeMemory::Create(n_bytes);
    if (!memory.ok()) {
      copies_.clear();
      taken_.clear();
      others.resize(parameters.size());
      for (std::size_t i = 0; i < others.size(); ++i) others[i] = i;
      return others;
    }
    memory_ = std::move(memory).value();
  }
  std::byte* next = memory_.data();
  for (TensorCopy& copy : copies_) {
    copy.data = next;
    next += (copy.tensor.n_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  batch_.WantCopies(copies_);
  return others;
}

void UpdateCapture::Copy() {
  batch_.WantCopies({});
  std::uint64_t n_bytes = 0;
  for (const TensorCopy& copy : copies_) {
    if (!copy.is_made) n_bytes += copy.tensor.n_bytes();
  }
  const auto copy_all = [&] {
    for (TensorCopy& copy : copies_) {
      if (copy.is_made) continue;
      StreamCopy(copy.data, static_cast<const std::byte*>(copy.tensor.data),
                 copy.tensor.n_bytes());
      copy.is_made = true;
    }
  };
  if (n_bytes <= kQuickBytes) return copy_all();
  const ReleaseGil released;
  copy_all();
}

std::vector<std::size_t> UpdateCapture::End(std::int64_t step,
                                            const py::tuple& entries,
                                            const py::tuple& flags,
                                            bool keeps_memory) {
  std::vector<std::size_t> changed;
  if (entries.size() != copies_.size() || flags.size() != copies_.size()) {
    throw py::value_error("entries and flags are those of other parameters");
  }
  std::vector<DifferenceRequest> requests;
  requests.reserve(copies_.size());
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const TensorCopy& copy = copies_[i];
    DifferenceRequest request{.tensor = {},
                              .before = copy.data,
                              .entry = &entries[i].cast<TensorEntry&>(),
                              .flags = flags[i].cast<long>()};
    if (!copy.is_made ||
        !batch_.Read(PyTuple_GET_ITEM(parameters_.ptr(), taken_[i]),
                     &request.tensor) ||
        !HasPlainMemory(request.tensor) ||
        !AreLaidOutAlike(request.tensor, copy.tensor)) {
      changed.push_back(i);
      continue;
    }
    requests.push_back(request);
  }
  batch_.TakeDifferences({.step = step, .site = {}}, requests);
  copies_.clear();
  taken_.clear();
  parameters_ = py::tuple();
  if (!keeps_memory && memory_.size() > kLittleMemory) Forget();
  return changed;
}

void UpdateCapture::Forget() {
  batch_.WantCopies({});
  copies_.clear();
  taken_.clear();
  parameters_ = py::tuple();
  // A forked child has none of it, and perhaps something else in its place.
  if (batch_.IsInert()) memory_.Forget();
  memory_ = {};
}

}  // namespace tdbg::python_capture
