// RunFiles is the directory of one writer: its name, and which shards it has.
//
// Implements docs/format.md, "A run".
//
// Thread safety: none.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "reader/directory.h"
#include "reader/shard_reader.h"

namespace tdbg {

class RunFiles {
 public:
  // Errors: kInvalidArgument when the name is not <role>-<rank>-<generation>;
  // kNotFound or kIoError when there is no such directory.
  static Result<RunFiles> Open(std::string directory);
  // The directory of that path, which is open already.
  static Result<RunFiles> Of(std::unique_ptr<Directory> directory,
                             const std::string& path);

  [[nodiscard]] const Directory& directory() const { return *directory_; }
  // The identity of the shards, from the name of the directory.
  [[nodiscard]] const ShardPlace& place() const { return place_; }

  // Bytes of the shard `number`; nothing when there is no such file.
  [[nodiscard]] std::optional<std::uint64_t> ShardSize(
      std::uint32_t number) const;
  // The lowest shard number above `number`; looks at the directory only when
  // it may have changed.
  std::optional<std::uint32_t> ShardAfter(std::uint32_t number);
  // Whether there is an index of the shard `number`.
  [[nodiscard]] bool HasIndex(std::uint32_t number) const;
  // The highest number of an index, 0 for none; looks at the directory as
  // ShardAfter does.
  std::uint32_t LastIndex();

  // The shards that have gone, or whose names other files have, since they were
  // opened: `inode_of` has the number of each file.  None if the directory was
  // not listed since this was asked last; looks at it as ShardAfter does.
  std::vector<std::uint32_t> Replaced(
      const std::vector<std::pair<std::uint32_t, std::uint64_t>>& inode_of);

  // What the system refused to tell first, since this was asked last: what was
  // taken for not there may be there.
  [[nodiscard]] Status TakeRefusal() {
    return std::exchange(refusal_, Status::Ok());
  }

 private:
  RunFiles(std::unique_ptr<Directory> directory, const ShardPlace& place)
      : directory_(std::move(directory)), place_(place) {}

  void List();
  // Lists the directory again if it may have changed.
  void Refresh();
  void NoteRefusal(const std::string& name, const Status& refusal) const;

  std::unique_ptr<Directory> directory_;
  ShardPlace place_;
  std::vector<std::uint32_t> numbers_;  // Ascending, as of the last listing.
  std::uint32_t last_index_ = 0;        // As of it, too.
  std::optional<std::int64_t> listed_;  // Directory::Version() before it.
  std::uint64_t n_listings_ = 0;
  std::uint64_t compared_at_ = 0;  // The listing at the last Replaced.
  mutable Status refusal_;
};

}  // namespace tdbg
