// Status says whether a call succeeded, and if not, what went wrong and where.
//
// The core throws nothing: every call that can fail returns a Status, or a
// Result<T> that holds either a value or a Status.  Only cpp/bindings turns a
// Status into a Python exception.
//
// Thread safety: values; share them as you would an int.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace tdbg {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // The caller passed something that can never work.
  kIoError,            // The operating system refused; see system_error().
  kCorruption,         // Bytes on disk are not what their checksum promises.
  kUnsupported,        // Valid, but written with a feature this build lacks.
  kLimitExceeded,      // A size on disk is above a limit of docs/format.md.
  kNotFound,           // There is no such thing.
  kResourceExhausted,  // A bounded buffer is full.
  kDeadlineExceeded,   // The bound on waiting passed.
  kClosed,             // The object was closed, or belongs to a parent process.
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }
  static Status InvalidArgument(std::string m) {
    return {StatusCode::kInvalidArgument, std::move(m)};
  }
  // `system_error` is the errno that the failed call left behind.
  static Status IoError(std::string m, int system_error) {
    Status status(StatusCode::kIoError, std::move(m));
    status.system_error_ = system_error;
    return status;
  }
  // `offset` counts bytes from the start of the file.
  static Status Corruption(std::string m, std::uint64_t offset) {
    Status status(StatusCode::kCorruption, std::move(m));
    status.offset_ = offset;
    return status;
  }
  static Status Unsupported(std::string m) {
    return {StatusCode::kUnsupported, std::move(m)};
  }
  static Status LimitExceeded(std::string m) {
    return {StatusCode::kLimitExceeded, std::move(m)};
  }
  static Status NotFound(std::string m) {
    return {StatusCode::kNotFound, std::move(m)};
  }
  static Status ResourceExhausted(std::string m) {
    return {StatusCode::kResourceExhausted, std::move(m)};
  }
  static Status DeadlineExceeded(std::string m) {
    return {StatusCode::kDeadlineExceeded, std::move(m)};
  }
  static Status Closed(std::string m) {
    return {StatusCode::kClosed, std::move(m)};
  }

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] int system_error() const { return system_error_; }
  [[nodiscard]] std::optional<std::uint64_t> offset() const { return offset_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  int system_error_ = 0;
  std::optional<std::uint64_t> offset_;
};

// Either a value or the Status that explains its absence.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit.
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit.

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] const Status& status() const { return status_; }

  // REQUIRES: ok().
  [[nodiscard]] T& value() & {
    TDBG_DCHECK(ok());
    return *value_;
  }
  [[nodiscard]] const T& value() const& {
    TDBG_DCHECK(ok());
    return *value_;
  }
  [[nodiscard]] T&& value() && {
    TDBG_DCHECK(ok());
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace tdbg

// Returns from the enclosing function when `expression` is not ok.
#define TDBG_RETURN_IF_ERROR(expression)                                  \
  do {                                                                    \
    if (::tdbg::Status tdbg_status_ = (expression); !tdbg_status_.ok()) { \
      return tdbg_status_;                                                \
    }                                                                     \
  } while (false)
