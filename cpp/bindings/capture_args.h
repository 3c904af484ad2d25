// The tensors that Python passes to a Capture: ids, addresses and strides; or
// their rows.
//
// Lists and tuples of int are read through the C API: a step passes hundreds of
// tensors, and a cast of each would cost more than reducing a small one.
//
// Thread safety: call with the GIL held; the results are values.
//
// Errors: raises TypeError, OverflowError or ValueError for what is no tensor.

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <vector>

#include "capture/capture.h"
#include "format/record.h"

namespace tdbg::bindings {

// The tensors of one call.  Moving it leaves the items valid; copying does not.
struct CaptureArgs {
  CaptureArgs() = default;
  CaptureArgs(CaptureArgs&&) = default;
  CaptureArgs(const CaptureArgs&) = delete;
  CaptureArgs& operator=(const CaptureArgs&) = delete;
  CaptureArgs& operator=(CaptureArgs&&) = delete;

  std::vector<CaptureItem> items;     // Point into `strides`.
  std::vector<std::int64_t> strides;  // Of all items, one after the other.
};

// REQUIRES of the caller in Python: three sequences of one length; `strides`
// and each of its elements may be None, which means contiguous.
[[nodiscard]] CaptureArgs ParseCaptureArgs(const pybind11::handle& ids,
                                           const pybind11::handle& pointers,
                                           const pybind11::handle& strides);

// Parses the arguments for one tensor.
[[nodiscard]] CaptureArgs ParseCaptureArg(std::int64_t id,
                                          std::uint64_t pointer,
                                          const pybind11::handle& strides);

// An id that cannot be one becomes 0, which was never given out: the capture
// counts it as refused.
[[nodiscard]] std::uint32_t ParseId(std::int64_t id);

// Parses finished rows: the columns that say what they belong to, and for each
// row the 12 words of its Summary.  Flags other than 0 stand for kRescaled.
[[nodiscard]] std::vector<Row> ParseRows(const pybind11::handle& ids,
                                         const pybind11::handle& calls,
                                         const pybind11::handle& micro_batches,
                                         const pybind11::handle& flags,
                                         std::span<const std::uint64_t> words);

}  // namespace tdbg::bindings
