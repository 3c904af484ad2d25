// PreviousValues keeps the values of tensors as they were saved, so that later
// ones can be stored as differences to them.
//
// Implements docs/format.md, "tensor", bases, for the writer.  The memory has a
// bound.  Who comes first is kept for as long as it is saved: nobody is pushed
// out by another, since tensors are saved in turn and each would find its own
// values gone.
//
// Thread safety: none; the writer thread owns it.
//
// Errors: none; without memory there is nothing to be a difference to.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace tdbg {

// Identifies tensors of a run that are values of the same thing.
struct TensorKey {
  std::uint32_t definition = 0;
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
  auto operator<=>(const TensorKey&) const = default;
};

class PreviousValues {
 public:
  struct Entry {
    std::vector<std::byte> bytes;  // As of record `sequence`.
    std::uint64_t sequence = 0;    // 0: of no record of this shard.
    std::uint32_t age = 0;         // Differences made since the key frame.
    std::uint32_t rest = 0;        // Saves for which not to try again.
    bool is_used = false;          // In this shard.
  };

  explicit PreviousValues(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // A new shard: no record of the one before can be a base.  What was not used
  // in that is given up.
  void BeginShard();

  // The entry of a tensor; made if it does not exist.  Valid until
  // BeginShard.
  Entry* Find(const TensorKey& key);

  // Gives `entry` room for n bytes, whose content it then has to be given;
  // false when they would exceed the bound.
  bool Reserve(Entry* entry, std::size_t n);
  // Gives the memory back, and leaves the tensor alone for `rest` saves.
  void Release(Entry* entry, std::uint32_t rest);

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  const std::uint64_t max_bytes_;
  std::uint64_t bytes_ = 0;  // Of all entries.
  std::map<TensorKey, Entry> entries_;
};

}  // namespace tdbg
