// CaptureItem and CallSite: one tensor that a hook passes, and its call.
//
// Thread safety: values.

#pragma once

#include <cstdint>
#include <span>

#include "reducers/beside.h"

namespace tdbg {

// One tensor as a hook passes it: its definition holds dtype and shape.
struct CaptureItem {
  std::uint32_t definition = 0;
  const void* data = nullptr;
  std::span<const std::int64_t> strides;  // In bytes; empty: contiguous.
  Beside beside = {};                     // As ReduceOptions; only of rows.
};

// Which call of a module in which micro-batch an item stems from.
struct CallSite {
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
  bool operator==(const CallSite&) const = default;
};

}  // namespace tdbg
