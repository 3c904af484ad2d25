// Threads that help the calling one with work that can be divided.
//
// The first call that asks for help starts them; from then on they sleep
// between calls.  One call is helped at a time: another one meanwhile works
// alone, and so does a forked child, which has no threads of its parent's.  The
// threads are called "tdbg-reduce", have all signals blocked, and never end:
// they hold nothing, so that a process may exit while they sleep.
//
// Thread safety: safe.

#pragma once

namespace tdbg {

// Most threads that one call can use, the calling one included.
inline constexpr unsigned kMaxThreads = 64;

// Calls work(context) on the calling thread and at the same time on up to
// `n_threads` - 1 others; returns when all have returned.  The work must divide
// itself, because help comes late or not at all: whoever comes takes the next
// part, and the calling thread does what nobody took.
// REQUIRES: `work` throws nothing and does not call this.
void WorkOnThreads(unsigned n_threads, void (*work)(void* context),
                   void* context);

}  // namespace tdbg
