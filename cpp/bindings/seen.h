// What of a step's tensors was reduced already, so that the same memory is read
// once: an output that is the next module's input, a view of it, the input of
// the loss.
//
// Memory is the same when the tensor object, or the one that it is a view of,
// is the very one of before, still alive and never gone (a weak reference says
// so), nothing was written to it (its version), and address, element type and
// layout agree.  Tensors are referred to weakly: none lives longer for it.
// What PyTorch does not count as a write (through `.data`, NumPy or a foreign
// library) is not seen: docs/steps.md says so.
//
// Thread safety: call with the GIL held.

#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bindings/exchange.h"
#include "capture/capture.h"

namespace tdbg::bindings {

// A row that the step has.
struct Taken {
  std::uint32_t definition = 0;
  CallSite site;
};

class Seen {
 public:
  // Below so many bytes a second look costs less than the question.
  static constexpr std::uint64_t kLeastBytes = 32 << 10;

  Seen() : entries_(kEntries) {}

  // Forgets everything unless this step and micro-batch is that of before.
  void Begin(std::int64_t step, std::uint16_t micro_batch);

  // The row of the same memory, or null.  Otherwise the tensor is noted as
  // `taken`, and further ones are compared with it.
  const Taken* Find(PyObject* tensor, const Exchanged& read, Taken taken);

 private:
  struct Entry {
    std::uint64_t epoch = 0;
    pybind11::object weak;  // Of the tensor, or of its base.
    long version = 0;
    Exchanged read;
    Taken taken;
  };
  // A power of two.  Two tensors that meet in one entry are both read.
  static constexpr std::size_t kEntries = 512;

  Entry& EntryOf(const void* data);

  std::int64_t step_ = -1;
  std::uint16_t micro_batch_ = 0;
  std::uint64_t epoch_ = 0;
  // All of it allocated once: what lies between the training's own tensors on
  // the heap would keep their memory from being used again.
  std::vector<Entry> entries_;
};

}  // namespace tdbg::bindings
