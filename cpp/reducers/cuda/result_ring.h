// ResultRing hands out room for results: the same range of a piece of device
// memory and of its pinned twin, to which the device copies what it wrote.
//
// Ranges are given back in any order, and used again in the order in which they
// were handed out.
//
// Thread safety: all methods from any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "base/mutex.h"
#include "reducers/cuda/driver.h"

namespace tdbg::cuda {

class ResultRing {
 public:
  static constexpr std::size_t kAlignment = 256;

  struct Piece {
    std::size_t offset = 0;
    std::size_t n = 0;
    DeviceAddress device = 0;
    std::byte* host = nullptr;
  };

  // REQUIRES: `device` and `host` have `n_bytes` bytes each, for as long as
  // pieces are used.
  ResultRing(DeviceAddress device, std::byte* host, std::size_t n_bytes)
      : device_(device), host_(host), n_bytes_(n_bytes) {}

  // `n` bytes of both, or nothing when they are not free now.
  std::optional<Piece> Take(std::size_t n);
  // REQUIRES: the device is done with it.
  void GiveBack(const Piece& piece);
  // How many pieces are out.
  [[nodiscard]] std::size_t n_out();

 private:
  struct Range {
    std::size_t offset;
    std::size_t n;
    bool is_free;
  };
  // Constant after construction.
  const DeviceAddress device_;
  std::byte* const host_;
  const std::size_t n_bytes_;

  Mutex mutex_;
  // In the order of Take; the first is in use.
  std::deque<Range> ranges_ TDBG_GUARDED_BY(mutex_);
};

}  // namespace tdbg::cuda
