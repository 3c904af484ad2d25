// The state that a Writer and its thread share, and how it ends the thread.
//
// Internal to writer.cc and producers.cc.
//
// Thread safety: as each part says.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>

#include "base/mutex.h"
#include "base/process.h"
#include "writer/writer_thread.h"

namespace tdbg {

struct Writer::State {
  State(const WriterOptions& options, std::unique_ptr<Staging> staging)
      : shared(options, std::move(staging)) {}
  // A thread that nobody has joined, because memory ran out, must not end the
  // process: it has ended, or ends with this.
  ~State() {
    if (thread.joinable()) thread.detach();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Constant after construction.
  const std::uint64_t fork_depth = ForkDepth();
  WriterShared shared;

  // Constant after Open.
  WriterDirectory directory;

  // Makes Close exclusive; held while it waits.
  Mutex close_mutex;
  std::thread thread TDBG_GUARDED_BY(close_mutex);
  bool closed TDBG_GUARDED_BY(close_mutex) = false;
  Status close_status TDBG_GUARDED_BY(close_mutex);

  // What the thread reports.
  Mutex mutex;
  std::condition_variable_any reported;
  bool started TDBG_GUARDED_BY(mutex) = false;
  Status start_status TDBG_GUARDED_BY(mutex);
  bool finished TDBG_GUARDED_BY(mutex) = false;
  Status finish_status TDBG_GUARDED_BY(mutex);

  [[nodiscard]] bool inert() const { return fork_depth != ForkDepth(); }

  static void ThreadMain(const std::shared_ptr<State>& state);

  // Offers a record; `fill` writes item->n_bytes bytes and what else it knows,
  // and receives the counts of the step that the record closes.
  // `tensors` returns the definitions that it is of, if it is lost.
  template <typename Tensors, typename Fill>
  bool Add(const Offer& offer, const RecordQueue::AdmissionPolicy& policy,
           Tensors tensors, Fill fill);
  template <typename Tensors, typename Fill>
  bool Add(const Offer& offer, Tensors tensors, Fill fill) {
    return Add(offer, AdmissionFor(offer.type), tensors, fill);
  }
  // Offers a tensor under kSample.
  template <typename Fill>
  bool AddSampled(const Offer& offer, std::uint32_t definition, Fill fill);
  // Calls Add or AddSampled, by the overflow option.
  template <typename Fill>
  bool AddTensor(std::uint32_t id, const Definition& definition,
                 const Offer& offer, Fill fill);
  [[nodiscard]] RecordQueue::AdmissionPolicy AdmissionFor(
      RecordType type) const;
  // Refuses `n` records: they are counted, and recorded in a `gap`.
  bool Refuse(const Offer& offer, GapReason reason,
              std::span<const std::uint32_t> definitions, std::uint64_t n = 1);

  template <typename Entry>
  bool AddTable(const Offer& offer, std::span<const Entry> entries,
                std::uint64_t entry_bytes);
};

}  // namespace tdbg
