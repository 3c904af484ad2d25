// LockedReader is a RunReader that threads of Python share.
//
// Where its files lie in an object store, and the store did not give what a
// question needed, the question raises what the store said.  The reader, which
// may have taken that for damage, is given up; the next question opens another
// one.
//
// Thread safety: all of it.

#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bindings/convert.h"
#include "bindings/python_files.h"
#include "reader/run_reader.h"

namespace tdbg::bindings {

// A RunReader and the lock that lets threads share it.
class LockedReader {
 public:
  // Calls `function` with the reader, without the GIL.
  template <typename Function>
  auto With(Function function) {
    using Answer = decltype(function(std::declval<RunReader&>()));
    constexpr bool kAnswers = !std::is_void_v<Answer>;
    std::optional<std::conditional_t<kAnswers, Answer, bool>> answer;
    std::exception_ptr refusal;
    Status opened;
    {
      const ReleaseGil released;
      const MutexLock lock(mutex_);
      opened = Open();
      if (opened.ok()) {
        const Resting resting(reader_.get());
        if constexpr (kAnswers) {
          answer.emplace(function(*reader_));
        } else {
          function(*reader_);
        }
      }
      refusal = files_ == nullptr ? nullptr : files_->TakeError();
      if (refusal) reader_.reset();
    }
    if (refusal) std::rethrow_exception(refusal);
    ThrowIfError(opened, directory_);
    if constexpr (kAnswers) return *std::move(answer);
  }

  // `files`: null where the directory is on this machine.
  LockedReader(std::string directory, const ReaderOptions& options,
               std::shared_ptr<PythonFiles> files)
      : directory_(std::move(directory)),
        options_(options),
        files_(std::move(files)) {
    With([this](RunReader&) { was_opened_ = false; });
  }

  // RunReader::Poll; also true once after another reader was opened.
  bool Poll() {
    return With([this](RunReader& reader) {
      const bool grew = reader.Poll();
      return std::exchange(was_opened_, false) || grew;
    });
  }

  // Another reader of the same files, for one that holds the lock or needs
  // none.
  [[nodiscard]] Result<std::unique_ptr<RunReader>> OpenAnother(
      const ReaderOptions& options) const {
    if (files_ == nullptr) return RunReader::Open(directory_, options);
    return RunReader::Open(std::make_unique<RemoteDirectory>(files_),
                           directory_, options);
  }
  [[nodiscard]] bool is_far() const { return files_ != nullptr; }

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

  Status Open() TDBG_REQUIRES(mutex_) {
    if (reader_ != nullptr) return Status::Ok();
    auto opened = OpenAnother(options_);
    if (opened.ok()) reader_ = std::move(opened).value();
    was_opened_ = opened.ok();
    return opened.status();
  }

  // Constant after construction.
  const std::string directory_;
  const ReaderOptions options_;
  const std::shared_ptr<PythonFiles> files_;
  Mutex mutex_;
  std::unique_ptr<RunReader> reader_ TDBG_GUARDED_BY(mutex_);
  bool was_opened_ TDBG_GUARDED_BY(mutex_) = false;  // Since the last Poll.
};

// Definitions, one by one and as columns.
void RegisterDefinitions(py::class_<LockedReader>& type);
// Questions by step and definition.
void RegisterQueries(py::class_<LockedReader>& type);
// EnvelopeGrid, and the questions that fill it.
void RegisterEnvelope(py::module_& module, py::class_<LockedReader>& reader);

}  // namespace tdbg::bindings
