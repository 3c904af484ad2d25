// LostTensors knows which tensors lost records, and for which reason.
//
// Implements docs/format.md, "event", what a writer says of lost tensors.  The
// first kMaxNamed of a reason have names, the others are counted.
//
// Thread safety: none.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/record.h"
#include "writer/definition_table.h"

namespace tdbg {

// One reason's losses.
struct LostForReason {
  struct Tensor {
    std::uint32_t definition = 0;
    std::int64_t first_step = kNoStep;
    std::uint64_t records = 0;  // A row and a scalar count as one.
  };
  GapReason reason = GapReason::kQueueFull;
  std::vector<Tensor> named;    // In the order of their first losses.
  std::uint64_t n_more = 0;     // Tensors that are not among these.
  std::uint64_t n_records = 0;  // Of all.
};

// The definitions that the entries of a table refer to, in their order.
template <typename Entry>
std::vector<std::uint32_t> DefinitionsOf(std::span<const Entry> entries) {
  std::vector<std::uint32_t> ids;
  ids.reserve(entries.size());
  for (const Entry& entry : entries) ids.push_back(entry.definition);
  return ids;
}

// What a writer says of them (docs/format.md): JSON of at most kMaxText bytes,
// or little more.
constexpr std::size_t kMaxText = 64U << 10;
std::string LostTensorsJson(const LostForReason& lost,
                            DefinitionTable* definitions);

class LostTensors {
 public:
  static constexpr std::size_t kMaxNamed = 64;
  static constexpr std::size_t kReasons = 9;

  // `records` of each of these were lost; 0 stands for no definition.
  void Add(GapReason reason, std::int64_t step,
           std::span<const std::uint32_t> definitions,
           std::uint64_t records = 1);

  // What has changed enough since it was told: there is another name, or there
  // are twice as many records; with `all`, whatever has changed.
  std::vector<LostForReason> TakeNews(bool all);
  // What was told did not reach the disk: all is news again.
  void Forget();
  // All of it.
  [[nodiscard]] std::vector<LostForReason> All() const;

 private:
  struct OfReason {
    LostForReason losses;
    std::vector<std::uint64_t> records;  // By definition.
    std::uint64_t told_records = 0;
    std::size_t told_names = 0;
  };
  [[nodiscard]] static LostForReason Counted(const OfReason& found);

  std::array<OfReason, kReasons> reasons_;
};

}  // namespace tdbg
