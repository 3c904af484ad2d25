// A slot is a captured name in front of the writer's definitions: it knows the
// ids of the element types and shapes that the name has had.  A tensor that is
// a shard of a larger one has a slot for each place where it lies in that.
//
// Thread safety: none of its own; the GIL, or the lock of its user.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/exchange.h"
#include "bindings/shard.h"
#include "capture/capture.h"
#include "format/record.h"

namespace tdbg::bindings {

class Slot {
 public:
  // `units` is the name of the summary of its units, or empty.
  Slot(std::string name, TensorRole role, std::vector<std::string> aliases,
       std::string units, Shard shard = {})
      : name_(std::move(name)),
        units_(std::move(units)),
        aliases_(std::move(aliases)),
        shard_(std::move(shard)),
        role_(role) {}

  // The id of the tensor's definition; 0 when it cannot be defined.
  std::uint32_t IdOf(const Exchanged& tensor, Capture& capture);

  // The id of the summary of its units, of which there are `n_units`.
  std::uint32_t UnitsOf(std::int64_t n_units, Capture& capture);

  [[nodiscard]] bool has_units() const { return !units_.empty(); }

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
  const TensorRole role_;
  std::vector<Known> known_;  // The latest first.
  std::vector<std::pair<std::int64_t, std::uint32_t>> known_units_;
};

}  // namespace tdbg::bindings
