// BatchCapture captures several tensors of a framework in one call.  It reads
// them through the DLPack exchange API, and arrays of NumPy by themselves; what
// it cannot read is returned to the caller, which captures it in Python.  Work
// for tensors on CUDA devices is put on the stream that the framework currently
// uses.
//
// Thread safety: call with the GIL held.  Large reductions release it, so other
// threads may call meanwhile.
//
// Errors: throws pybind11::error_already_set where Python raised.

#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "capture/capture.h"
#include "python_capture/array_reader.h"
#include "python_capture/capture_flags.h"
#include "python_capture/dlpack_reader.h"
#include "python_capture/row_cache.h"
#include "python_capture/tensor_entry.h"

namespace tdbg::python_capture {

// Fewer bytes than this are reduced without releasing the GIL: acquiring it
// again costs more, up to 5 ms beside busy threads.
inline constexpr std::uint64_t kQuickBytes = 128 << 10;

// What all tensors of one call have in common.
struct CaptureContext {
  std::int64_t step = 0;
  CallSite site;
  double scale = 1.0;
  // A float32 on the CUDA device `divisor_device` that divides the elements; if
  // set, `scale` is ignored.
  const void* divisor = nullptr;
  int divisor_device = kHost;
  // Whether rows of memory that this step has already reduced are copied.
  bool reuses_rows = false;
};

// One tensor of a call.  The caller keeps both objects alive.
struct TensorRequest {
  PyObject* tensor = nullptr;
  TensorEntry* entry = nullptr;
  long flags = 0;  // capture_flags.
};

// A tensor of which somebody wants a copy, and where.
struct TensorCopy {
  TensorDescriptor tensor;
  std::byte* data = nullptr;
  bool is_made = false;
};

// A difference to capture: a tensor as it is now, less a copy of it from
// before, which is laid out alike and lost.
struct DifferenceRequest {
  TensorDescriptor tensor;
  std::byte* before = nullptr;
  TensorEntry* entry = nullptr;
  long flags = 0;  // capture_flags.
};

// The forward pass under way, as far as hooks of modules need it.
struct ForwardState {
  bool is_open = false;
  bool has_data = false;     // Whether `context.has_data` was set.
  pybind11::object context;  // The step's context in Python.
  pybind11::object calls;    // A dict: number of calls by module.
  pybind11::object request;  // The step's capture request in Python.
  std::int64_t step = 0;
  std::uint16_t micro_batch = 0;
};

class BatchCapture {
 public:
  // Reads arrays of NumPy, and tensors of these `types` only, of which the
  // first one is the type of plain tensors (IsPlain).
  BatchCapture(Capture& capture, const pybind11::tuple& types);

  // Whether it can read any of the types.
  [[nodiscard]] bool CanRead() const { return !reader_.empty(); }
  // Rows that were copied because their memory had been reduced before.
  [[nodiscard]] std::uint64_t n_repeated() const { return n_repeated_; }
  // Values that were not kept because they exceed the limit of their entry.
  [[nodiscard]] std::uint64_t n_too_large() const { return n_too_large_; }
  [[nodiscard]] bool IsPlain(PyObject* object) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(object)) == plain_.ptr();
  }

  // Reads a scale that lies on a device: a tensor of one float32.  Returns
  // false if `tensor` is anything else.
  bool ReadDivisor(PyObject* tensor, CaptureContext* context) const;

  // Captures the requested tensors.  Returns the indices of the requests that
  // cannot be read here or that their device cannot handle.  With
  // `all_or_none`, nothing is captured if any tensor cannot be read, and what a
  // device cannot handle is counted as refused instead of returned.
  std::vector<std::size_t> Take(const CaptureContext& context,
                                std::span<const TensorRequest> requests,
                                bool all_or_none = false);

  // Captures numbers, each as a tensor of no dimensions of its own: `requests`
  // has an entry and flags for each element of `numbers`, an array of NumPy of
  // one dimension.  False, and nothing is captured, if it is anything else.
  bool TakeNumbers(const CaptureContext& context, PyObject* numbers,
                   std::span<const TensorRequest> requests);

  // Starts copying the values of the requested tensors that are contiguous and
  // lie on a device with kernels; captures nothing else.  Returns their
  // indices.  The caller keeps their memory alive until Fence; writing to it
  // while a copy is under way spoils that copy.
  std::vector<std::size_t> BeginValues(std::int64_t step,
                                       std::span<const TensorRequest> requests);
  // Makes the current stream of each device wait for the copies started.
  void Fence();

  // From now on Take makes the copies of these tensors that it reduces, and
  // notes it there; of none, no copy.  The caller keeps them alive.
  void WantCopies(std::span<TensorCopy> copies);
  // Captures the differences.
  // REQUIRES: tensors are dense on the CPU, aligned and not scaled.
  void TakeDifferences(const CaptureContext& context,
                       std::span<const DifferenceRequest> requests);

  // As DlpackReader and ArrayReader.
  bool Read(PyObject* tensor, TensorDescriptor* out) const {
    return reader_.Read(tensor, out) || array_reader_.Read(tensor, out);
  }
  // Whether this is a forked child.
  [[nodiscard]] bool IsInert() const { return capture_.writer().inert(); }

  [[nodiscard]] ForwardState& forward() { return forward_; }

  // CUDA devices that tensors were on.
  [[nodiscard]] const std::set<int>& devices() const { return devices_; }

  // Adds time spent in calls that Python does not measure.
  void Spend(std::int64_t nanoseconds) { spent_ns_ += nanoseconds; }
  [[nodiscard]] std::int64_t spent_ns() const { return spent_ns_; }

 private:
  // A request whose tensor was read.
  struct Job {
    TensorDescriptor tensor;
    std::uint32_t id = 0;
    std::uint32_t unit_summary_id = 0;
    UnitSummarySpec unit_spec;
    long flags = 0;
    std::size_t request = 0;

    [[nodiscard]] CaptureItem item(Beside beside = {}) const {
      return {.definition = id,
              .data = tensor.data,
              .strides = tensor.strides(),
              .beside = beside};
    }
  };
  // Memory of a call, used again by the next one.
  struct Scratch {
    std::vector<Job> jobs;
    std::vector<PyObject*> tensors;  // Of the jobs.
    std::vector<CaptureItem> rows;
  };

  // Keeps the memory of a call for the next one.
  void Spare(Scratch scratch);
  // Whether a tensor that was read can be captured here now.
  bool CanTake(const CaptureContext& context, const Job& job);
  void TakeAll(const CaptureContext& context, Scratch* scratch,
               std::vector<std::size_t>* unhandled);
  // Captures all jobs whose tensors lie on `device`.
  void TakeOnDevice(const CaptureContext& context, const Scratch& scratch,
                    int device, std::vector<std::size_t>* unhandled);
  // Copies the row of the same memory if the step has one; false otherwise.
  bool RepeatRow(const CaptureContext& context, PyObject* tensor,
                 const Job& job, void* stream = nullptr);
  static bool KeepsValues(const CaptureContext& context, const Job& job);
  // Requests the values of a job if they are within the limit of its entry.
  void ApplyLimit(const CaptureContext& context, TensorEntry* entry, Job* job);
  // Where the pass that reduces this tensor is to copy it; null: nowhere.
  std::byte* CopyOf(const CaptureContext& context,
                    const TensorDescriptor& tensor);
  // Captures everything but the row of a job on the CPU.
  void TakeBesidesRow(const CaptureContext& context, const Job& job);

  Capture& capture_;
  const DlpackReader reader_;
  const ArrayReader array_reader_;
  const pybind11::object plain_;
  RowCache row_cache_;
  ForwardState forward_;
  Scratch spare_;
  // The copies that are wanted, in the order of the addresses of their tensors.
  std::vector<TensorCopy*> wanted_;
  std::set<int> devices_;
  std::set<int> unfenced_;  // Devices with copies of BeginValues.
  std::uint64_t n_repeated_ = 0;
  std::uint64_t n_too_large_ = 0;
  std::int64_t spent_ns_ = 0;
};

}  // namespace tdbg::python_capture
