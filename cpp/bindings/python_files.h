// PythonFiles is what an object store has of a writer, fetched by a Python
// function.
//
// Thread safety: all of it, without the GIL unless a comment says otherwise.
//
// Errors: what the function raises is kept, and raised when the GIL is held.

#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "reader/remote_files.h"

namespace tdbg::bindings {

namespace py = pybind11;

class PythonFiles final : public RemoteFiles {
 public:
  // `fetch(ranges)` returns the bytes of each (name, offset, length).  Call
  // with the GIL held, as the destructor.
  explicit PythonFiles(py::function fetch) : fetch_(std::move(fetch)) {}

  // What the function raised since this was asked last; null: nothing.  Between
  // Fetch and this no other thread may read.
  std::exception_ptr TakeError() {
    (void)TakeFailure();
    return std::exchange(error_, nullptr);
  }

 protected:
  Status Fetch(std::span<const FileRange> ranges,
               std::span<const std::span<std::byte>> out) override;

 private:
  const py::function fetch_;
  std::exception_ptr error_;
};

}  // namespace tdbg::bindings
