#include "writer/definition_table.h"

#include <string_view>
#include <utility>
#include <vector>

#include "base/sha256.h"

namespace tdbg {
namespace {

constexpr std::uint32_t kNameWasCut = 1;  // Definition::flags

// The longest prefix that leaves room for "#" and 64 digits, and does not cut a
// character of several bytes.
std::string ShortName(const std::string& name) {
  const auto digest = Sha256(name.data(), name.size());
  std::size_t n = limits::kName - 65;
  while (n > 0 && (static_cast<unsigned char>(name[n]) & 0xc0) == 0x80) --n;
  std::string text = name.substr(0, n) + "#";
  for (const std::byte byte : digest) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

// Aliases that are stored: each short enough, and as many as a definition
// holds.
void ShortenAliases(Definition* definition) {
  std::vector<std::string>& aliases = definition->aliases;
  for (std::string& alias : aliases) {
    if (alias.size() > limits::kName) alias = ShortName(alias);
  }
  if (aliases.size() > UINT16_MAX) aliases.resize(UINT16_MAX);
  std::size_t size = EncodeDefinition(*definition).size();
  while (size > limits::kDefinition && !aliases.empty()) {
    size -= aliases.back().size() + sizeof(std::uint32_t);
    aliases.pop_back();
  }
}

// Whether what we would write is what a reader would accept.
bool IsStorable(const Definition& definition) {
  if (definition.shape.size() > limits::kDimensions ||
      definition.aliases.size() > UINT16_MAX ||
      definition.placements.size() > UINT16_MAX ||
      definition.global_offset.size() != definition.global_shape.size()) {
    return false;
  }
  return DecodeDefinition(EncodeDefinition(definition)).ok();
}

}  // namespace

std::uint32_t DefinitionTable::Define(Definition definition) {
  if (definition.name.size() > limits::kName) {
    definition.name = ShortName(definition.name);
    definition.flags |= kNameWasCut;
  }
  if (!definition.aliases.empty()) ShortenAliases(&definition);
  definition.id = 1;  // Any valid one, for the check.
  if (!IsStorable(definition)) return 0;
  std::vector<std::string> aliases = std::exchange(definition.aliases, {});
  const std::vector<std::byte> encoded = EncodeDefinition(definition);
  std::string key(reinterpret_cast<const char*>(encoded.data()),
                  encoded.size());

  MutexLock lock(mutex_);
  const auto next = static_cast<std::uint32_t>(definitions_.size() + 1);
  const auto [it, is_new] = ids_.try_emplace(std::move(key), next);
  if (is_new) {
    definition.id = next;
    definition.aliases = std::move(aliases);
    definitions_.push_back(std::move(definition));
  }
  return it->second;
}

const Definition* DefinitionTable::Find(std::uint32_t id) {
  MutexLock lock(mutex_);
  if (id == 0 || id > definitions_.size()) return nullptr;
  return &definitions_[id - 1];
}

std::uint32_t DefinitionTable::size() {
  MutexLock lock(mutex_);
  return static_cast<std::uint32_t>(definitions_.size());
}

}  // namespace tdbg
