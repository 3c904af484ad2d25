// Definitions are those of all shards of a writer: every shard repeats the ones
// it uses.
//
// A run may have 100,000, and each stays for as long as somebody reads the run:
// they are held as they stand in their records, and decoded when asked for.
//
// Thread safety: none.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "format/record.h"

namespace tdbg {

class Definitions {
 public:
  // Adds a definition, unless it is known.  Of two of one id the first counts,
  // except that the aliases are those of the last.
  // Errors: kCorruption when anything else of it has changed.
  Status Take(const Definition& definition);

  // How many came; one counts again when its aliases have changed.
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  // The one that came at `place`.
  // REQUIRES: place < size().
  [[nodiscard]] Definition At(std::size_t place) const;
  // All of them, in the order in which they came.
  [[nodiscard]] std::vector<Definition> list() const;
  // Whether it is the first of its id.
  // REQUIRES: place < size().
  [[nodiscard]] bool IsFirst(std::size_t place) const {
    return !entries_[place].is_again;
  }
  // Whether no definition of its name came before it.
  // REQUIRES: place < size().
  [[nodiscard]] bool IsFirstOfName(std::size_t place) const {
    return IsFirst(place) && entries_[place].before == kNone;
  }
  // The last one of this id.
  [[nodiscard]] std::optional<Definition> Find(std::uint32_t id) const;
  // The ids of this name, in the order in which they came.
  [[nodiscard]] std::vector<std::uint32_t> IdsOf(const std::string& name) const;
  // How many names there are.
  [[nodiscard]] std::size_t n_names() const { return names_.size(); }

  // Bytes of the memory that they take.
  [[nodiscard]] std::uint64_t n_held() const {
    return bytes_.size() + entries_.size() * sizeof(Entry) + ids_.n_held() +
           names_.n_held();
  }

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
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  struct Entry {
    std::uint64_t end = 0;   // Of its bytes.
    std::uint64_t hash = 0;  // Of its name.
    std::uint32_t id = 0;
    std::uint32_t before = kNone;  // The place before of the same name.
    bool is_again = false;
  };

  // Places by a hash, of which the caller tells those that have the same apart.
  class Places {
   public:
    [[nodiscard]] std::size_t size() const { return n_; }
    [[nodiscard]] std::uint64_t n_held() const {
      return slots_.size() * sizeof(Slot);
    }
    // The place at which `is_it` says so, or kNone.
    template <typename IsIt>
    [[nodiscard]] std::uint32_t Find(std::uint64_t hash, IsIt is_it) const;
    // Sets the place of which `is_it` says so, or adds one.
    template <typename IsIt>
    void Set(std::uint64_t hash, std::uint32_t place, IsIt is_it);

   private:
    struct Slot {
      std::uint32_t hash = 0;
      std::uint32_t place = kNone;
    };
    // The slot that it has, or would have.
    template <typename IsIt>
    [[nodiscard]] std::size_t SlotOf(std::uint64_t hash, IsIt is_it) const;
    void Grow();

    std::vector<Slot> slots_;  // A power of two of them.
    std::size_t n_ = 0;
  };

  [[nodiscard]] std::uint32_t PlaceOfId(std::uint32_t id) const;
  [[nodiscard]] std::uint32_t PlaceOfName(std::string_view name,
                                          std::uint64_t hash) const;
  void Append(const Definition& definition, bool is_again);

  std::vector<std::byte> bytes_;
  std::vector<Entry> entries_;
  Places ids_;    // The last of each id.
  Places names_;  // The last first one of each name.
  std::optional<Digest> last_;
};

}  // namespace tdbg
