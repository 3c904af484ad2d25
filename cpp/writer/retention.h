// Retention removes old data of a writer, as somebody wished: values by their
// age, and what is oldest beyond a number of bytes.
//
// Implements docs/format.md, "Retention".  Only sealed shards are touched: each
// is replaced as a whole, by a copy without the records that go, or unlinked.
// What was replaced keeps another name for a while, so that whoever reads it
// does not notice.
//
// Thread safety: none.  Two processes may apply one to the same directory: a
// lock makes the second pass over it.
//
// Errors: the first one ends a pass, and stands in its report; what was done
// until then is whole.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "format/record.h"
#include "writer/retention_options.h"
#include "writer/shard_copy.h"

namespace tdbg {

// A shard that a pass replaced or, in a dry run, would.
struct Removal {
  std::string directory;
  std::uint32_t number = 0;
  std::uint64_t n_bytes = 0;  // By which the files shrink.
  bool is_all = false;        // Else its values only.
  Gap gap;                    // All that the copy says was removed.
};

struct RetentionReport {
  std::vector<Removal> removals;
  std::uint64_t n_bytes = 0;  // Of all files afterwards.
  Status status;
};

class Retention {
 public:
  using Clock = std::chrono::steady_clock;
  // How long what was replaced keeps a name, if its bytes are not needed.
  static constexpr std::chrono::seconds kGrace{30};

  // REQUIRES: `file_system` outlives this.
  // `progress` is called when something was written.
  Retention(FileSystem* file_system, const RetentionOptions& options,
            std::function<void()> progress, std::chrono::seconds grace = kGrace)
      : file_system_(file_system),
        options_(options),
        progress_(std::move(progress)),
        grace_(grace) {}

  struct Pass {
    std::vector<std::string> directories;  // Of writers, oldest first.
    std::int64_t newest_step = kNoStep;
    std::uint64_t headroom = 0;  // Of max_bytes, for what comes next.
    bool is_dry = false;
  };
  RetentionReport Apply(const Pass& pass);

 private:
  // A sealed shard, as far as a pass must know it.
  struct Facts {
    std::uint32_t number = 0;
    std::uint64_t n_bytes = 0;  // With its index.
    std::uint64_t first_sequence = 0;
    std::uint64_t n_tensors = 0;
    std::int64_t last_value = kNoStep;  // The step of its newest value.
    std::optional<Gap> removed;
    bool is_stub = false;  // Nothing but events is left.
    bool was_aged = false;
  };
  struct Writer {
    std::string path;
    std::optional<DirectoryLock> lock;
    std::map<std::uint32_t, Facts> shards;
  };
  class Run;

  [[nodiscard]] Result<Facts> FactsOf(const std::string& directory,
                                      std::uint32_t number) const;

  FileSystem* const file_system_;
  const RetentionOptions options_;
  const std::function<void()> progress_;
  const std::chrono::seconds grace_;
  // By path: what was learned of shards, and since when a file is left behind.
  std::map<std::string, Facts> known_;
  std::map<std::string, Clock::time_point> left_behind_;
};

}  // namespace tdbg
