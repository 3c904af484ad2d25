// A slot is a captured name in front of the writer's definitions: it knows the
// ids of the element types and shapes that the name has had.  A tensor that is
// a shard of a larger one has a slot for each place where it lies in that.
//
// Thread safety: none of its own; the GIL, or the lock of its user.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/exchange.h"
#include "bindings/shard.h"
#include "capture/capture.h"
#include "capture/unit_question.h"
#include "format/record.h"

namespace tdbg::bindings {

class Slot {
 public:
  // `units` is the name of the summary of its units, or empty.
  Slot(std::string name, TensorRole role, std::vector<std::string> aliases,
       std::string units, Shard shard = {}, UnitQuestion question = {})
      : name_(std::move(name)),
        units_(std::move(units)),
        aliases_(std::move(aliases)),
        shard_(std::move(shard)),
        question_(question),
        role_(role) {}

  // The id of the tensor's definition; 0 when it cannot be defined.
  std::uint32_t IdOf(const Exchanged& tensor, Capture& capture);

  // Whether a value of so many bytes is kept where only small enough ones are;
  // one that is not is remembered.
  bool Keeps(std::uint64_t n_bytes) {
    if (n_bytes <= raw_limit_) return true;
    too_large_ = std::max(too_large_, n_bytes);
    return false;
  }
  void set_raw_limit(std::uint64_t n_bytes) { raw_limit_ = n_bytes; }
  [[nodiscard]] std::uint64_t raw_limit() const { return raw_limit_; }
  // Bytes of the largest value that was not kept; 0: there was none.
  [[nodiscard]] std::uint64_t too_large() const { return too_large_; }

  // The id of the summary of its units, of which there are `n_units`.
  std::uint32_t UnitsOf(std::int64_t n_units, Capture& capture);

  [[nodiscard]] bool has_units() const { return !units_.empty(); }
  [[nodiscard]] const UnitQuestion& question() const { return question_; }

 private:
  struct Known {
    DType dtype;
    std::vector<std::int64_t> shape;
    std::uint32_t id;
  };

  const std::string name_;
  const std::string units_;
  const std::vector<std::string> aliases_;
  const Shard shard_;
  const UnitQuestion question_;
  const TensorRole role_;
  std::uint64_t raw_limit_ = 0;
  std::uint64_t too_large_ = 0;
  std::vector<Known> known_;  // The latest first.
  std::vector<std::pair<std::int64_t, std::uint32_t>> known_units_;
};

}  // namespace tdbg::bindings
