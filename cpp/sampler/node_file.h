// What the processes of a training on one node share: who of them samples the
// machine, and which processes belong to the training.
//
// It is one file, in a directory that is in memory.  Who samples holds a lock
// on its first byte, which the kernel frees when the process dies.  Everybody
// who takes part holds a shared lock on its second byte; who leaves last
// removes the file.  Its lines name the processes and are only ever added:
//
//   <pid> <start, in ticks since boot> <rank> <kind> <worker>
//
// The locks belong to the process: a forked child has none of them, and its
// copy of a NodeFile does nothing.
//
// Thread safety: all of it.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tdbg {

// A process of the training.
struct TrainingProcess {
  std::int32_t pid = 0;
  std::uint64_t start_ticks = 0;  // Tells it from a later one of the same pid.
  std::int32_t rank = 0;
  std::uint32_t kind = 0;    // tdbg.run.profile_tables.ProcessKind
  std::int32_t worker = -1;  // Number of a loader's worker.

  bool operator==(const TrainingProcess&) const = default;
};
[[nodiscard]] std::string WrittenProcess(const TrainingProcess& process);
// The processes that the lines of a text name; others are passed over.
[[nodiscard]] std::vector<TrainingProcess> ParseTrainingProcesses(
    std::string_view text);

class NodeFile {
 public:
  // Processes that are written to the file, bytes of it at most.
  static constexpr std::uint64_t kMaxBytes = 16U << 20;

  // Takes part, by the file `path`, which is made if need be, until the last
  // copy of the pointer is gone.  In one process there is one NodeFile of a
  // path: to close a second descriptor would free the locks of the first.
  // Without a path, nobody shares the file.
  // Errors: kIoError; kInvalidArgument if it is not a file of this user.
  static Result<std::shared_ptr<NodeFile>> Join(const std::string& path);
  NodeFile(const NodeFile&) = delete;
  NodeFile& operator=(const NodeFile&) = delete;

  // Whether the caller samples from now on, until StopSampling.
  bool TrySample();
  void StopSampling();

  // False if the file is full or cannot be written.
  bool Add(const TrainingProcess& process);
  // The processes that were added since the call that returned `*offset`, which
  // begins with 0.
  std::vector<TrainingProcess> ReadFrom(std::uint64_t* offset);

 private:
  NodeFile(std::string path, int fd);
  // Leaves; removes the file if nobody else takes part.
  ~NodeFile();
  static Result<NodeFile*> Open(const std::string& path);
  static void Leave(NodeFile* file);
  // Locks the open file as one who takes part; false if it is to be opened
  // again.
  bool TakePart();
  [[nodiscard]] bool is_copy() const;

  const std::string path_;
  const int fd_;
  const std::uint64_t fork_depth_;
  bool takes_part_ = false;
  std::atomic<bool> is_sampled_{false};  // By somebody in this process.
};

}  // namespace tdbg
