// Problem is something in the files of a writer that is not as it should be.
//
// Implements docs/format.md, "Reading".

#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tdbg {

enum class ProblemKind : std::uint8_t {
  kDamage = 1,       // A record failed a check, and others follow.
  kTornTail = 2,     // The writer died in the middle of a record.
  kForeign = 3,      // A shard of another run, writer, or place.
  kUnsupported = 4,  // Written with a feature that this build lacks.
  kIo = 5,           // The operating system refused to open or read.
  kMissing = 6,      // Sequence numbers or a whole shard are not there.
};

// The name of the kind, as users see it.
[[nodiscard]] inline const char* ProblemName(ProblemKind kind) {
  switch (kind) {
    case ProblemKind::kDamage:
      return "damage";
    case ProblemKind::kTornTail:
      return "torn_tail";
    case ProblemKind::kForeign:
      return "foreign";
    case ProblemKind::kUnsupported:
      return "unsupported";
    case ProblemKind::kIo:
      return "io";
    case ProblemKind::kMissing:
      return "missing";
  }
  return "unknown";
}

// The kind of what a check of a record said.
[[nodiscard]] inline ProblemKind KindOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kIoError:
      return ProblemKind::kIo;
    case StatusCode::kUnsupported:
      return ProblemKind::kUnsupported;
    default:
      return ProblemKind::kDamage;
  }
}

// Says in which file and record a Status arose; corruption is `within` bytes
// behind the start of the record.
[[nodiscard]] inline Status InRecord(const Status& status,
                                     const std::string& file,
                                     std::uint64_t offset,
                                     std::uint64_t within) {
  const std::string message =
      file + ": record at " + std::to_string(offset) + ": " + status.message();
  if (status.code() == StatusCode::kCorruption) {
    return Status::Corruption(message, offset + within);
  }
  if (status.code() == StatusCode::kIoError) {
    return Status::IoError(message, status.system_error());
  }
  return {status.code(), message};
}

struct Problem {
  ProblemKind kind;
  std::string file;  // Path relative to the writer directory.
  std::uint64_t offset = 0;
  std::uint64_t length = 0;  // Bytes skipped; 0 where unknown.
  std::string message;       // What was expected, what was found.
};

}  // namespace tdbg
