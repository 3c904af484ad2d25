// Liveness is whether a writer is still alive.

#pragma once

#include <cstdint>

namespace tdbg {

enum class Liveness : std::uint8_t {
  kUnknown = 0,  // No valid page, another host, or another boot.
  kRunning = 1,
  kStalled = 2,  // The process is there; no heartbeat for 10 s.
  kClosed = 3,   // It closed its last shard: nothing more will come.
  kDead = 4,     // The process is gone without closing.
};

}  // namespace tdbg
