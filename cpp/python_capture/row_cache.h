// RowCache remembers which memory a step has already reduced, so that the same
// memory is read once: an output that is the next module's input, a view of it,
// the input of the loss.
//
// Memory counts as the same when the tensor object, or the one that it is a
// view of, is the one seen before and was alive ever since (a weak reference
// proves it), nothing was written to it (its version), and address, element
// type and layout agree.  The cache holds weak references only: no tensor lives
// longer because of it.  A write that PyTorch does not count (through `.data`,
// NumPy or a foreign library) goes unnoticed: docs/steps.md says so.
//
// Thread safety: call with the GIL held.

#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "capture/capture.h"
#include "python_capture/dlpack_reader.h"

namespace tdbg::python_capture {

// A row that the step has.
struct CachedRow {
  std::uint32_t definition = 0;
  CallSite site;
};

class RowCache {
 public:
  // Smaller tensors are not looked up: reducing them again costs less.
  static constexpr std::uint64_t kLeastBytes = 32 << 10;

  RowCache() : entries_(kEntries) {}

  // Empties the cache unless step and micro-batch are those of the last call.
  void Begin(std::int64_t step, std::uint16_t micro_batch);

  // Returns the row of the same memory, or null; then remembers that `row` is
  // the row of this memory.
  const CachedRow* FindOrAdd(PyObject* tensor,
                             const TensorDescriptor& descriptor, CachedRow row);

 private:
  struct Entry {
    std::uint64_t epoch = 0;
    pybind11::object weak;  // Refers to the tensor, or to its base.
    long version = 0;
    TensorDescriptor descriptor;
    CachedRow row;
  };
  // A power of two.  Two tensors that fall into one entry are both reduced.
  static constexpr std::size_t kEntries = 512;

  Entry& EntryOf(const void* data);

  std::int64_t step_ = -1;
  std::uint16_t micro_batch_ = 0;
  std::uint64_t epoch_ = 0;
  // Allocated once: small allocations between the training's tensors on the
  // heap would keep their memory from being used again.
  std::vector<Entry> entries_;
};

}  // namespace tdbg::python_capture
