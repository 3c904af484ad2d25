// The processes of the training on this node: ranks and their loader workers,
// until they end.
//
// Ranks are read at each sample, the others in turn, so that many of them stay
// cheap.  Files of /proc stay open as long as a small part of the descriptors
// of this process is enough for them.
//
// Thread safety: belongs to one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sampler/kernel_file.h"
#include "sampler/node_file.h"
#include "sampler/profile_rows.h"

namespace tdbg {

inline constexpr std::uint32_t kRankKind = 1;  // ProcessKind.RANK

class TrainingProcesses {
 public:
  // Processes that are no ranks and are read at one sample, at most.
  static constexpr std::size_t kInTurn = 5;
  // More than any node has.
  static constexpr std::size_t kMaxProcesses = 4096;

  // `root` stands before "/proc"; `max_open_files` may stay open.
  TrainingProcesses(std::string root, std::size_t max_open_files);

  // Follows this process from now on, if it lives.
  void Add(const TrainingProcess& process);
  // Reads those whose turn it is; those that have ended are followed no more.
  void Sample(std::int64_t time, TextBuffer* buffer,
              const std::function<void(const ProcessRow&)>& on_process);

  [[nodiscard]] std::size_t size() const {
    return ranks_.size() + others_.size();
  }
  [[nodiscard]] std::vector<std::int32_t> pids(bool only_ranks) const;

 private:
  struct Followed {
    TrainingProcess process;
    KernelFile stat, run_times, bytes;
    bool stays_open;
  };
  // False if the process has ended.
  bool Read(Followed* followed, TextBuffer* buffer, ProcessRow* row) const;
  void Forget(std::vector<Followed>* all, std::size_t i);

  const std::string root_;
  const std::uint64_t page_bytes_;
  const std::uint64_t tick_ns_;
  std::size_t n_may_open_;  // Processes whose files may stay open besides.
  std::vector<Followed> ranks_;
  std::vector<Followed> others_;
  std::size_t next_ = 0;  // Of the others.
};

}  // namespace tdbg
