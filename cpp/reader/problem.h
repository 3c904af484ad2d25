// Problem is something in the files of a writer that is not as it should be.
//
// Implements docs/format.md, "Reading".

#pragma once

#include <cstdint>
#include <string>

namespace tdbg {

enum class ProblemKind : std::uint8_t {
  kDamage = 1,       // A record failed a check, and others follow.
  kTornTail = 2,     // The writer died in the middle of a record.
  kForeign = 3,      // A shard of another run, writer, or place.
  kUnsupported = 4,  // Written with a feature that this build lacks.
  kIo = 5,           // The operating system refused to open or read.
  kMissing = 6,      // Sequence numbers or a whole shard are not there.
};

// What users see of the kind.
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

struct Problem {
  ProblemKind kind;
  std::string file;  // Path relative to the writer directory.
  std::uint64_t offset = 0;
  std::uint64_t length = 0;  // Bytes skipped; 0 where unknown.
  std::string message;       // What was expected, what was found.
};

}  // namespace tdbg
