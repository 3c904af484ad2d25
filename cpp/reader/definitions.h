// Definitions are those of all shards of a writer: every shard repeats the ones
// it uses.
//
// Thread safety: none.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "format/record.h"

namespace tdbg {

class Definitions {
 public:
  // Adds a definition, unless it is known.  Of two of one id the first counts,
  // except that the aliases are those of the last.
  // Errors: kCorruption when anything else of it has changed.
  Status Take(Definition definition);

  // In the order in which they came; again when aliases have changed.
  [[nodiscard]] const std::vector<Definition>& list() const { return list_; }
  // The last one of this id, or null; valid until the next Take.
  [[nodiscard]] const Definition* Find(std::uint32_t id) const;
  // The ids of this name, in the order in which they came.
  [[nodiscard]] std::span<const std::uint32_t> IdsOf(
      const std::string& name) const;

  // Identifies the definitions of one index among others: the sizes
  // and the checksums of two tables.
  using Digest = std::array<std::uint64_t, 4>;
  // Whether those of `digest` were taken in last, so that nothing in them is
  // new: the shards of a run mostly use the same.
  [[nodiscard]] bool IsLast(const Digest& digest) const {
    return last_ == digest;
  }
  void RememberLast(const Digest& digest) { last_ = digest; }

 private:
  std::vector<Definition> list_;
  std::unordered_map<std::uint32_t, std::size_t> place_of_id_;
  std::unordered_map<std::string, std::vector<std::uint32_t>> ids_of_name_;
  std::optional<Digest> last_;
};

}  // namespace tdbg
