#include "reader/row_columns.h"

#include <algorithm>
#include <cstring>

namespace tdbg {

namespace {

// Grows as by adding one at a time: a shard more must not copy all again.
template <typename Value>
void MakeRoom(std::vector<Value>* values, std::size_t n) {
  const std::size_t needed = values->size() + n;
  if (needed <= values->capacity()) return;
  values->reserve(std::max(needed, 2 * values->capacity()));
}

}  // namespace

void RowColumns::Reserve(std::size_t n) {
  MakeRoom(&places, n);
  for (std::vector<std::uint64_t>& field : fields_) MakeRoom(&field, n);
}

void RowColumns::Add(std::uint32_t definition,
                     std::span<const ColumnRow> rows) {
  const std::vector<std::int64_t>& steps = query_->steps;
  chosen_.clear();
  bool ascends = true;
  std::size_t at = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t step = rows[i].step;
    // Nearly always the next one; a writer may skip steps, and go back.
    if (at == steps.size() || steps[at] != step) {
      at = static_cast<std::size_t>(
          std::lower_bound(steps.begin(), steps.end(), step) - steps.begin());
      if (at == steps.size() || steps[at] != step) continue;
    }
    ascends = ascends && (chosen_.empty() || places.back() < at);
    chosen_.push_back(static_cast<std::uint32_t>(i));
    places.push_back(static_cast<std::uint32_t>(at));
    if (at + 1 < steps.size() && i + 1 < rows.size() &&
        rows[i + 1].step != step) {
      ++at;
    }
  }
  if (chosen_.empty()) return;
  stretches.push_back(
      {.definition = definition, .n = chosen_.size(), .ascends = ascends});
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    std::vector<std::uint64_t>& field = fields_[f];
    const std::size_t begin = field.size();
    field.resize(begin + chosen_.size());
    std::uint64_t* out = field.data() + begin;
    const std::size_t offset = 8 * query_->fields[f];
    for (const std::uint32_t i : chosen_) {
      std::memcpy(out++,
                  reinterpret_cast<const std::byte*>(  // NOLINT
                      &rows[i].summary) +
                      offset,
                  8);
    }
  }
}

}  // namespace tdbg
