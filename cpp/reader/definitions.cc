#include "reader/definitions.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "base/check.h"

namespace tdbg {
namespace {

std::uint64_t HashOf(std::uint32_t id) {
  return (id * 0x9E3779B97F4A7C15ULL) >> 32U;
}

std::uint64_t HashOf(std::string_view name) {
  return std::hash<std::string_view>()(name);
}

}  // namespace

// --- Places ------------------------------------------------------------------

template <typename IsIt>
std::size_t Definitions::Places::SlotOf(std::uint64_t hash, IsIt is_it) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at].place != kNone &&
         (slots_[at].hash != static_cast<std::uint32_t>(hash) ||
          !is_it(slots_[at].place))) {
    at = (at + 1) & mask;
  }
  return at;
}

template <typename IsIt>
std::uint32_t Definitions::Places::Find(std::uint64_t hash, IsIt is_it) const {
  return slots_.empty() ? kNone : slots_[SlotOf(hash, is_it)].place;
}

template <typename IsIt>
void Definitions::Places::Set(std::uint64_t hash, std::uint32_t place,
                              IsIt is_it) {
  if (slots_.size() < 2 * (n_ + 1)) Grow();
  Slot& slot = slots_[SlotOf(hash, is_it)];
  if (slot.place == kNone) ++n_;
  slot = {static_cast<std::uint32_t>(hash), place};
}

void Definitions::Places::Grow() {
  const std::vector<Slot> before = std::exchange(
      slots_, std::vector<Slot>(std::max<std::size_t>(16, 2 * slots_.size())));
  for (const Slot& slot : before) {
    if (slot.place == kNone) continue;
    const auto none = [](std::uint32_t) { return false; };
    slots_[SlotOf(slot.hash, none)] = slot;
  }
}

// --- Definitions -------------------------------------------------------------

Status Definitions::Take(const Definition& definition) {
  const std::uint32_t known = PlaceOfId(definition.id);
  if (known != kNone) {
    Definition first = At(known);
    if (first == definition) return Status::Ok();
    first.aliases = definition.aliases;
    if (!(first == definition)) {
      return Status::Corruption("definition " + std::to_string(definition.id) +
                                    " is not what it was before",
                                0);
    }
  }
  Append(definition, known != kNone);
  return Status::Ok();
}

void Definitions::Append(const Definition& definition, bool is_again) {
  const auto place = static_cast<std::uint32_t>(entries_.size());
  Entry entry{.hash = HashOf(std::string_view(definition.name)),
              .id = definition.id,
              .is_again = is_again};
  if (!is_again) entry.before = PlaceOfName(definition.name, entry.hash);
  const std::vector<std::byte> encoded = EncodeDefinition(definition);
  bytes_.insert(bytes_.end(), encoded.begin(), encoded.end());
  entry.end = bytes_.size();
  entries_.push_back(entry);
  ids_.Set(HashOf(entry.id), place,
           [&](std::uint32_t at) { return entries_[at].id == entry.id; });
  if (is_again) return;
  names_.Set(entry.hash, place,
             [&](std::uint32_t at) { return at == entry.before; });
}

Definition Definitions::At(std::size_t place) const {
  const std::size_t first = place == 0 ? 0 : entries_[place - 1].end;
  auto decoded = DecodeDefinition(
      std::span(bytes_).subspan(first, entries_[place].end - first));
  TDBG_DCHECK(decoded.ok());
  return std::move(decoded).value();
}

std::vector<Definition> Definitions::list() const {
  std::vector<Definition> found;
  found.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) found.push_back(At(i));
  return found;
}

std::uint32_t Definitions::PlaceOfId(std::uint32_t id) const {
  return ids_.Find(HashOf(id),
                   [&](std::uint32_t at) { return entries_[at].id == id; });
}

std::uint32_t Definitions::PlaceOfName(std::string_view name,
                                       std::uint64_t hash) const {
  return names_.Find(hash, [&](std::uint32_t at) {
    return entries_[at].hash == hash && At(at).name == name;
  });
}

std::optional<Definition> Definitions::Find(std::uint32_t id) const {
  const std::uint32_t place = PlaceOfId(id);
  return place == kNone ? std::nullopt : std::optional(At(place));
}

std::vector<std::uint32_t> Definitions::IdsOf(const std::string& name) const {
  std::vector<std::uint32_t> found;
  std::uint32_t at = PlaceOfName(name, HashOf(std::string_view(name)));
  for (; at != kNone; at = entries_[at].before) {
    found.push_back(entries_[at].id);
  }
  std::ranges::reverse(found);
  return found;
}

}  // namespace tdbg
