// RecordChain tells which of the record headers that follow damage are where
// they belong: the longest chain of records that do not overlap and whose
// sequences ascend.
//
// Implements docs/format.md, "Reading".  A header that was copied to another
// place holds, and would make repetitions of the records that it passes by.
// Those are more than it: a chain without it is longer.
//
// Thread safety: none.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <utility>
#include <vector>

namespace tdbg {

// A record whose header holds.
struct FoundRecord {
  std::uint64_t offset = 0;
  std::uint64_t sequence = 0;
};

class RecordChain {
 public:
  // Adds a record that ends before `end`.
  // REQUIRES: !is_full(), and its offset is above those of all that were added.
  void Add(const FoundRecord& record, std::uint64_t end);

  // The longest chain, last record first; of several of the same length, the
  // one whose records lie further back.
  [[nodiscard]] std::vector<FoundRecord> Longest();
  // Whether there is no room for another 2^14: a writer puts fewer than 2^17
  // into a shard.
  [[nodiscard]] bool is_full() const { return nodes_.size() >= kMost; }

 private:
  static constexpr std::size_t kMost = 1U << 24;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Node {
    FoundRecord record;
    std::uint32_t length = 1;        // Of the longest chain that ends here,
    std::uint32_t previous = kNone;  // and the record before this in it.
  };
  struct Ending {
    std::uint64_t end = 0;
    std::uint32_t node = 0;
    bool operator>(const Ending& other) const {
      return end != other.end ? end > other.end : node > other.node;
    }
  };

  // Lets a chain that ends at `node` be continued.
  void Open(std::uint32_t node);

  std::vector<Node> nodes_;
  // Records that the last one added may overlap.
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> pending_;
  // Of all others, by length and sequence, those that no other of this length
  // replaces: one that lies further back and whose sequence is not higher.
  // Invariant: of a length, the offsets ascend with the sequences.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> open_;
  // The lowest sequence of each length.  Invariant: they ascend.
  std::vector<std::uint64_t> lowest_;
};

}  // namespace tdbg
