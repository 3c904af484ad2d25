#include "writer/previous_values.h"

#include <new>
#include <utility>

namespace tdbg {

void PreviousValues::BeginShard() {
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    if (!entry.is_used) {
      bytes_ -= entry.bytes.size();
      it = entries_.erase(it);
      continue;
    }
    entry.is_used = false;
    entry.sequence = 0;
    ++it;
  }
}

PreviousValues::Entry* PreviousValues::Find(const TensorKey& key) {
  Entry& entry = entries_[key];
  entry.is_used = true;
  return &entry;
}

bool PreviousValues::Reserve(Entry* entry, std::size_t n) {
  entry->sequence = 0;
  if (entry->bytes.size() == n) return true;
  const std::uint64_t others = bytes_ - entry->bytes.size();
  if (n > max_bytes_ || others > max_bytes_ - n) return false;
  try {
    entry->bytes.resize(n);
  } catch (const std::bad_alloc&) {
    return false;
  }
  bytes_ = others + n;
  return true;
}

void PreviousValues::Release(Entry* entry, std::uint32_t rest) {
  bytes_ -= entry->bytes.size();
  *entry = Entry();
  entry->rest = rest;
  entry->is_used = true;
}

}  // namespace tdbg
