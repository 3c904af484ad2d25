// LockedReader is a RunReader that threads of Python share.
//
// Thread safety: all of it.

#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bindings/convert.h"
#include "reader/run_reader.h"

namespace tdbg::bindings {

// A RunReader and the lock that lets threads share it.
class LockedReader {
 public:
  LockedReader(std::string directory, const ReaderOptions& options,
               std::unique_ptr<RunReader> reader)
      : directory_(std::move(directory)),
        options_(options),
        reader_(std::move(reader)) {}

  // Calls `function` with the reader, without the GIL.
  template <typename Function>
  auto With(Function function) {
    const ReleaseGil released;
    const MutexLock lock(mutex_);
    const Resting resting(reader_.get());
    return function(*reader_);
  }

  // Converts table[start:].
  template <typename Table, typename Convert>
  auto Tail(Table table, std::size_t start, Convert convert) {
    return With([&](RunReader& reader) {
      const auto& entries = (reader.*table)();
      std::vector<decltype(convert(entries.front()))> result;
      if (start < entries.size()) {
        result.reserve(entries.size() - start);
        std::transform(entries.begin() + static_cast<std::ptrdiff_t>(start),
                       entries.end(), std::back_inserter(result), convert);
      }
      return result;
    });
  }

  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] const ReaderOptions& options() const { return options_; }

 private:
  // Lets the reader rest when a call has ended.
  class Resting {
   public:
    explicit Resting(RunReader* reader) : reader_(reader) {}
    ~Resting() { reader_->Rest(); }
    Resting(const Resting&) = delete;
    Resting& operator=(const Resting&) = delete;

   private:
    RunReader* const reader_;
  };

  // Constant after construction.
  const std::string directory_;
  const ReaderOptions options_;
  Mutex mutex_;
  const std::unique_ptr<RunReader> reader_ TDBG_GUARDED_BY(mutex_);
};

// Definitions, one by one and as columns.
void RegisterDefinitions(py::class_<LockedReader>& type);
// Questions by step and definition.
void RegisterQueries(py::class_<LockedReader>& type);
// EnvelopeGrid, and the questions that fill it.
void RegisterEnvelope(py::module_& module, py::class_<LockedReader>& reader);

}  // namespace tdbg::bindings
