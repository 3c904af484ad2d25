#include "python_capture/fingerprints.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "python_capture/gil.h"
#include "tensor/row_hash.h"

namespace tdbg::python_capture {
namespace {

namespace py = pybind11;

// Tensors of one call that are hashed, and how deep they are looked for.
constexpr std::size_t kMostTensors = 4;
constexpr int kDeepest = 3;
// Rows that wait at most before they are due, and for how long.
constexpr std::size_t kMostWaiting = 256;
constexpr std::int64_t kPatienceNs = 1'000'000'000;

using Found = std::vector<TensorDescriptor>;

// Adds the tensors in a structure, in order, that can be read.
void FindTensors(const BatchCapture& batch, PyObject* object, int depth,
                 Found* found) {
  if (found->size() >= kMostTensors) return;
  if (PyTuple_Check(object) != 0 || PyList_Check(object) != 0) {
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(object);
    for (Py_ssize_t i = 0; i < n && depth > 0; ++i) {
      FindTensors(batch, PySequence_Fast_GET_ITEM(object, i), depth - 1, found);
    }
  } else if (PyDict_Check(object) != 0) {
    Py_ssize_t position = 0;
    PyObject* value = nullptr;
    while (depth > 0 && PyDict_Next(object, &position, nullptr, &value) != 0) {
      FindTensors(batch, value, depth - 1, found);
    }
  } else {
    TensorDescriptor tensor;
    if (batch.Read(object, &tensor) && tensor.n_dimensions > 0 &&
        tensor.count > 0) {
      found->push_back(tensor);
    }
  }
}

// The kind of elements, by NumPy's letter.
char KindOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return 'b';
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return 'i';
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return 'u';
    default:
      return 'f';
  }
}

// The second argument of a call, positional or not; null: there is none.
PyObject* SecondArgument(PyObject* args, PyObject* kwargs) {
  const Py_ssize_t n = PyTuple_Check(args) == 0 ? 0 : PyTuple_GET_SIZE(args);
  if (n > 1) return PyTuple_GET_ITEM(args, 1);
  if (kwargs == nullptr || PyDict_Check(kwargs) == 0) return nullptr;
  Py_ssize_t position = 0;
  PyObject* value = nullptr;
  for (Py_ssize_t i = n; i < 2; ++i) {
    if (PyDict_Next(kwargs, &position, nullptr, &value) == 0) return nullptr;
  }
  return value;
}

}  // namespace

Fingerprints::Fingerprints(py::object batch, std::int64_t most_trained,
                           std::int64_t most_others, int training_mode)
    : owner_(std::move(batch)),
      batch_(owner_.cast<BatchCapture&>()),
      most_{most_trained, most_others},
      training_mode_(training_mode),
      taken_ns_(MonotonicNs()) {}

std::size_t Fingerprints::AddSource(std::string name) {
  sources_.push_back({.name = std::move(name), .waiting = {}});
  return sources_.size() - 1;
}

void Fingerprints::AddRoot(const py::object& event, std::string name) {
  roots_.push_back({.event = event, .name = std::move(name), .sources = {}});
}

std::size_t Fingerprints::AddLoss(std::string name) {
  return AddSource("label/" + std::move(name) + "_input_1");
}

void Fingerprints::TakeInputs(PyObject* event, std::int64_t step, int mode,
                              PyObject* args, PyObject* kwargs) noexcept {
  const auto root = std::find_if(
      roots_.begin(), roots_.end(),
      [event](const Root& each) { return each.event.ptr() == event; });
  if (root == roots_.end()) return;
  const bool goes_on = call_.step == step && call_.mode == mode;
  call_ = {.step = step,
           .mode = mode,
           .number = goes_on ? call_.number + 1 : 0,
           .samples = 0};
  if (is_full(mode == training_mode_)) return;
  try {
    TakeArguments(&*root, args, kwargs);
  } catch (const std::exception&) {
    PyErr_Clear();  // Left by a conversion.
  }
}

void Fingerprints::TakeCounted(PyObject* event, std::int64_t n_steps,
                               PyObject* args, PyObject* kwargs) noexcept {
  const std::int64_t start = MonotonicNs();
  TakeInputs(event, counted_from_ + n_steps, training_mode_, args, kwargs);
  spent_ns_ += MonotonicNs() - start;
}

void Fingerprints::TakeArguments(Root* root, PyObject* args, PyObject* kwargs) {
  Found found;
  FindTensors(batch_, args, kDeepest, &found);
  if (kwargs != nullptr) FindTensors(batch_, kwargs, kDeepest, &found);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (i >= root->sources.size()) {
      root->sources.push_back(
          AddSource("input/" + root->name + "_input_" + std::to_string(i)));
    }
    const std::size_t source = root->sources[i];
    const auto samples = static_cast<std::uint64_t>(found[i].extents[0]);
    if (i == 0) call_.samples = samples;
    TakeTensor(source, found[i], samples);
  }
}

void Fingerprints::TakeLabels(std::size_t loss, PyObject* args,
                              PyObject* kwargs) noexcept {
  if (call_.step < 0 || is_full(call_.mode == training_mode_) ||
      loss >= sources_.size()) {
    return;
  }
  const std::int64_t start = MonotonicNs();
  try {
    Found found;
    PyObject* const labels = SecondArgument(args, kwargs);
    if (labels != nullptr) FindTensors(batch_, labels, 0, &found);
    if (!found.empty()) TakeTensor(loss, found[0], call_.samples);
  } catch (const std::exception&) {
    PyErr_Clear();
  }
  spent_ns_ += MonotonicNs() - start;
}

void Fingerprints::TakeTensor(std::size_t source,
                              const TensorDescriptor& tensor,
                              std::uint64_t samples) {
  if (tensor.device != kHost) {
    ++n_on_devices_;
    return;
  }
  auto n_rows = static_cast<std::uint64_t>(tensor.extents[0]);
  if (samples > 0 && n_rows % samples == 0) n_rows = samples;
  const TensorView view{
      .data = tensor.data,
      .dtype = tensor.dtype,
      .item_size = static_cast<std::uint32_t>(ItemSize(tensor.dtype)),
      .shape = tensor.shape(),
      .strides = tensor.strides()};
  const std::uint64_t n_bytes = view.n_bytes() / n_rows;
  const Call call = call_;
  std::vector<std::uint64_t> hashes;
  {
    std::optional<ReleaseGil> released;
    if (view.n_bytes() > kQuickBytes) released.emplace();
    HashRows(view, n_rows, &hashes);
  }
  const bool is_training = call.mode == training_mode_;
  n_hashed_[is_training ? 0 : 1] += static_cast<std::int64_t>(hashes.size());
  n_beyond_ += static_cast<std::int64_t>(n_rows - hashes.size());
  FingerprintRow row{.time = MonotonicNs(),
                     .step = call.step,
                     .call = call.number,
                     .samples = static_cast<std::uint32_t>(n_rows),
                     .row_bytes = static_cast<std::uint32_t>(n_bytes),
                     .mode = static_cast<std::uint16_t>(call.mode),
                     .kind = static_cast<std::uint8_t>(KindOf(tensor.dtype)),
                     .is_whole = n_bytes <= kWholeRow};
  for (std::size_t at = 0; at < hashes.size(); at += FingerprintRow::kHashes) {
    const std::size_t n = std::min(FingerprintRow::kHashes, hashes.size() - at);
    row.hashes.fill(0);
    std::copy_n(&hashes[at], n, row.hashes.begin());
    row.first = static_cast<std::uint32_t>(at);
    row.n = static_cast<std::uint8_t>(n);
    row.n_varied =
        at > 0 ? FingerprintRow::kNotLooked
               : static_cast<std::uint8_t>(CountVaried(view, n_rows, n));
    sources_[source].waiting.push_back(row);
    ++n_waiting_;
  }
}

bool Fingerprints::IsDue() const {
  return n_waiting_ >= kMostWaiting ||
         (n_waiting_ > 0 && MonotonicNs() - taken_ns_ >= kPatienceNs);
}

py::list Fingerprints::Take() {
  py::list taken;
  for (Source& source : sources_) {
    if (source.waiting.empty()) continue;
    taken.append(py::make_tuple(
        source.name,
        py::bytes(reinterpret_cast<const char*>(source.waiting.data()),
                  source.waiting.size() * sizeof(FingerprintRow))));
    source.waiting.clear();
  }
  n_waiting_ = 0;
  taken_ns_ = MonotonicNs();
  return taken;
}

}  // namespace tdbg::python_capture
