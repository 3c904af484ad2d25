// Completion reports when the bytes of a queued record have arrived: those of a
// device, that are still on their way when the record takes its place.
//
// The writer thread asks when the record is the oldest of the queue, and all
// behind it wait with it; so order, flush, close and bounds are those of every
// other record, and nobody but the writer's thread waits.
//
// Thread safety: made by the producer; after that the writer thread alone calls
// Poll, and destroys it when the record is done or the queue ends.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tdbg {

class Completion {
 public:
  enum class Answer : std::uint8_t {
    kPending,
    kDone,
    kFailed,  // The record is dropped (GapReason::kDeviceError).
  };

  Completion() = default;
  virtual ~Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // `*bytes` are the record's, in staging memory.  They are complete when the
  // answer is kDone; it may then be made shorter, when fewer came.  Never
  // blocks.  Not called again after another answer than kPending.
  virtual Answer Poll(std::span<std::byte>* bytes) = 0;

  // Of a record of rows: the definitions that it will have, to name them if it
  // is lost.
  [[nodiscard]] virtual std::vector<std::uint32_t> Definitions() const {
    return {};
  }
};

}  // namespace tdbg
