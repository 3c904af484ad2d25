// TensorEntry is the name of a captured tensor with everything that its
// definitions share.  It defines the name for each element type and shape that
// it meets and remembers the ids.  A tensor that is a shard of a larger one has
// an entry for each place in the larger tensor.  Python's TensorEntry
// (tdbg/capture/tensor_entry.py) holds one, and adds what the policy needs.
//
// Thread safety: none of its own; the GIL, or the lock of its user.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capture/capture.h"
#include "capture/unit_summary_spec.h"
#include "format/record.h"
#include "python_capture/dlpack_reader.h"
#include "python_capture/tensor_shard.h"

namespace tdbg::python_capture {

class TensorEntry {
 public:
  // `unit_summary` is the name of its unit summary; empty: it has none.
  TensorEntry(std::string name, TensorRole role,
              std::vector<std::string> aliases, std::string unit_summary,
              TensorShard shard = {}, UnitSummarySpec unit_spec = {})
      : name_(std::move(name)),
        unit_summary_(std::move(unit_summary)),
        aliases_(std::move(aliases)),
        shard_(std::move(shard)),
        unit_spec_(unit_spec),
        role_(role) {}

  // The id of the tensor's definition; 0 if it cannot be defined.
  std::uint32_t IdOf(const TensorDescriptor& tensor, Capture& capture);

  // Whether values of `n_bytes` are within the limit; remembers the largest
  // size above it.
  bool IsWithinLimit(std::uint64_t n_bytes) {
    if (n_bytes <= raw_limit_) return true;
    too_large_ = std::max(too_large_, n_bytes);
    return false;
  }
  void set_raw_limit(std::uint64_t n_bytes) { raw_limit_ = n_bytes; }
  [[nodiscard]] std::uint64_t raw_limit() const { return raw_limit_; }
  // Bytes of the largest value above the limit; 0: there was none.
  [[nodiscard]] std::uint64_t too_large() const { return too_large_; }

  // The id of the unit summary of a tensor with `n_units` units.
  std::uint32_t UnitSummaryIdOf(std::int64_t n_units, Capture& capture);

  [[nodiscard]] bool has_units() const { return !unit_summary_.empty(); }
  [[nodiscard]] const UnitSummarySpec& unit_spec() const { return unit_spec_; }

 private:
  struct Known {
    DType dtype;
    std::vector<std::int64_t> shape;
    std::uint32_t id;
  };

  const std::string name_;
  const std::string unit_summary_;
  const std::vector<std::string> aliases_;
  const TensorShard shard_;
  const UnitSummarySpec unit_spec_;
  const TensorRole role_;
  std::uint64_t raw_limit_ = 0;
  std::uint64_t too_large_ = 0;
  std::vector<Known> known_;  // The latest first.
  std::vector<std::pair<std::int64_t, std::uint32_t>> known_units_;
};

}  // namespace tdbg::python_capture
