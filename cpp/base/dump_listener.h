// Lets others ask this process where it is: somebody writes a file, a thread
// sees it within about a second and sends a signal to its own process, the
// handler of that signal (Python's faulthandler) writes where all threads are,
// and the thread puts that beside the question.
//
// docs/format.md, "Stacks", has the files.  No signal comes from another
// process, so a number of a process that is another one now is never
// signalled; and it works wherever the folder is mounted.  Nothing here needs
// Python: it works while the interpreter's lock is held forever.
//
// Thread safety: none; one owner.  Errors: none; a folder that is not there
// yet, or refuses, is tried again.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/repeating_thread.h"

namespace tdbg {

class DumpListener {
 public:
  struct Options {
    std::string folder;    // Is made when the folder above it is there.
    std::string name;      // Of the files of this process, without a suffix.
    std::string identity;  // What the file says that this process has here.
    int signal = 0;        // 0: there is none, and others are told so.
    int dump_fd = -1;      // Where the handler writes; a file in memory.
    // One line about the process at this moment; empty: nothing is known.
    std::function<std::string()> state;
  };

  DumpListener(Options options, std::chrono::nanoseconds interval);

  // Questions answered so far.
  [[nodiscard]] std::uint64_t n_answered() const;

 private:
  class Work;

  std::shared_ptr<Work> work_;
  RepeatingThread thread_;
};

}  // namespace tdbg
