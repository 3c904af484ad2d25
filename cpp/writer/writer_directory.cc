#include "writer/writer_directory.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <string_view>

#include "format/names.h"

namespace tdbg {
namespace {

// How many processes may race for a name before somebody gives up.
constexpr int kMaxAttempts = 1000;

// The generation in a directory's name, or 0 when it is none of ours.
std::uint32_t GenerationOf(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return 0;
  name.remove_prefix(prefix.size());
  std::uint32_t generation = 0;
  const auto [end, error] =
      std::from_chars(name.data(), name.data() + name.size(), generation);
  if (error != std::errc() || end != name.data() + name.size()) return 0;
  return generation;
}

std::string PrefixOf(WriterRole role, std::uint32_t rank) {
  return std::string(RoleName(role)) + "-" + std::to_string(rank) + "-";
}

}  // namespace

Result<WriterDirectory> CreateWriterDirectory(FileSystem* file_system,
                                              const std::string& run_directory,
                                              WriterRole role,
                                              std::uint32_t rank) {
  const std::string parent = run_directory + "/w";
  if (const Status made = MakeDirectory(file_system, parent);
      !made.ok() && made.system_error() != EEXIST) {
    return made;
  }
  const auto names = ListDirectory(file_system, parent);
  if (!names.ok()) return names.status();
  const std::string prefix = PrefixOf(role, rank);
  std::uint32_t highest = 0;
  for (const std::string& name : names.value()) {
    highest = std::max(highest, GenerationOf(name, prefix));
  }
  Status made;
  for (int i = 1; i <= kMaxAttempts; ++i) {
    WriterDirectory directory;
    directory.generation = highest + static_cast<std::uint32_t>(i);
    directory.path = parent;
    directory.path += '/';
    directory.path += prefix;
    directory.path += std::to_string(directory.generation);
    made = MakeDirectory(file_system, directory.path);
    if (made.ok()) return directory;
    if (made.system_error() != EEXIST) return made;
  }
  return made;
}

Result<std::vector<std::string>> ListWriterDirectories(
    FileSystem* file_system, const std::string& run_directory, WriterRole role,
    std::uint32_t rank) {
  const std::string parent = run_directory + "/w";
  const auto names = ListDirectory(file_system, parent);
  if (!names.ok()) return names.status();
  std::map<std::uint32_t, std::string> found;
  for (const std::string& name : names.value()) {
    const std::uint32_t generation = GenerationOf(name, PrefixOf(role, rank));
    if (generation != 0) found[generation] = parent + "/" + name;
  }
  std::vector<std::string> paths;
  for (const auto& [generation, path] : found) paths.push_back(path);
  return paths;
}

}  // namespace tdbg
