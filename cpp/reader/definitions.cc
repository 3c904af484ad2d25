#include "reader/definitions.h"

#include <utility>

namespace tdbg {

Status Definitions::Take(Definition definition) {
  if (const Definition* known = Find(definition.id)) {
    if (*known == definition) return Status::Ok();
    Definition first = *known;
    first.aliases = definition.aliases;
    if (!(first == definition)) {
      return Status::Corruption("definition " + std::to_string(definition.id) +
                                    " is not what it was before",
                                0);
    }
  } else {
    ids_of_name_[definition.name].push_back(definition.id);
  }
  place_of_id_[definition.id] = list_.size();
  list_.push_back(std::move(definition));
  return Status::Ok();
}

const Definition* Definitions::Find(std::uint32_t id) const {
  const auto found = place_of_id_.find(id);
  return found == place_of_id_.end() ? nullptr : &list_[found->second];
}

std::span<const std::uint32_t> Definitions::IdsOf(
    const std::string& name) const {
  const auto found = ids_of_name_.find(name);
  if (found == ids_of_name_.end()) return {};
  return found->second;
}

}  // namespace tdbg
