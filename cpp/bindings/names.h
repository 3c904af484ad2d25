// The names by which Python chooses among the core's enumerations.
//
// Errors: a name that is none raises ConfigurationError with the valid ones.

#pragma once

#include <string>

#include "format/record.h"
#include "writer/writer.h"

namespace tdbg::bindings {

[[nodiscard]] WriterRole ParseRole(const std::string& role);
[[nodiscard]] Overflow ParseOverflow(const std::string& overflow);
[[nodiscard]] CodecPolicy ParseCodec(const std::string& codec);

// The name of a reason for which records were lost.
[[nodiscard]] const char* NameOf(GapReason reason);

}  // namespace tdbg::bindings
