#include "writer/writer.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/process.h"
#include "writer/record_queue.h"
#include "writer/writer_thread.h"

namespace tdbg {
namespace {

// How long Open waits for a file system that does not answer.
constexpr std::chrono::seconds kStartTimeout{30};
constexpr std::size_t kRowsPerRecord = 64U << 10;

Status CheckOptions(const WriterOptions& options) {
  if (options.queue_bytes < WriterOptions::kMinQueueBytes ||
      options.queue_bytes > limits::kRecord) {
    return Status::InvalidArgument(
        "queue_bytes must be from 1 MiB to 1 TiB, got " +
        std::to_string(options.queue_bytes));
  }
  if (options.shard_bytes == 0 || options.shard_bytes > limits::kShard) {
    return Status::InvalidArgument("shard_bytes must be from 1 to 2^62, got " +
                                   std::to_string(options.shard_bytes));
  }
  if (options.flush_interval.count() <= 0 ||
      options.flush_interval > std::chrono::hours(1)) {
    return Status::InvalidArgument(
        "flush_interval must be above 0 and at most an hour");
  }
  if (options.retry_interval.count() <= 0 ||
      options.retry_interval > std::chrono::seconds(30)) {
    return Status::InvalidArgument(
        "retry_interval must be above 0 and at most 30 s");
  }
  return Status::Ok();
}

// Starts a thread with all signals blocked: the process's handlers run in its
// own threads, and a write beyond RLIMIT_FSIZE is an error instead of a death.
template <typename Body>
Status StartThread(Body body, std::thread* thread) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    *thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    status =
        Status::IoError(std::string("start the writer thread: ") + error.what(),
                        error.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace

struct Writer::State {
  State(const WriterOptions& options, std::unique_ptr<Staging> staging)
      : shared(options, std::move(staging)) {}

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

  // What the thread tells.
  Mutex mutex;
  std::condition_variable_any told;
  bool started TDBG_GUARDED_BY(mutex) = false;
  Status start_status TDBG_GUARDED_BY(mutex);
  bool finished TDBG_GUARDED_BY(mutex) = false;
  Status finish_status TDBG_GUARDED_BY(mutex);

  [[nodiscard]] bool inert() const { return fork_depth != ForkDepth(); }

  static void ThreadMain(const std::shared_ptr<State>& state);

  // Offers a record; `fill` writes item->n_bytes bytes and what else it knows.
  template <typename Fill>
  bool Add(const Offer& offer, Fill fill);
  // Refuses one: counted, and told in the data.
  bool Refuse(const Offer& offer, GapReason reason, std::uint64_t n = 1);

  template <typename Entry>
  bool AddTable(const Offer& offer, std::span<const Entry> entries,
                std::uint64_t entry_bytes);
};

void Writer::State::ThreadMain(const std::shared_ptr<State>& state) {
  // What debuggers and top show; at most 15 characters.
  (void)pthread_setname_np(pthread_self(), "tdbg-writer");
  Status status;
  {
    WriterThread thread(&state->shared);
    status = thread.Start();
    {
      MutexLock lock(state->mutex);
      state->directory = thread.directory();
      state->start_status = status;
      state->started = true;
      state->told.notify_all();
    }
    if (status.ok()) status = thread.Run();
  }
  MutexLock lock(state->mutex);
  state->finish_status = std::move(status);
  state->finished = true;
  state->told.notify_all();
}

Result<std::unique_ptr<Writer>> Writer::Open(const WriterOptions& options) {
  TDBG_RETURN_IF_ERROR(CheckOptions(options));
  auto staging = Staging::Create(options.queue_bytes);
  if (!staging.ok()) return staging.status();
  auto state = std::make_shared<State>(options, std::move(staging).value());

  std::thread thread;
  TDBG_RETURN_IF_ERROR(
      StartThread([state] { State::ThreadMain(state); }, &thread));
  Status status;
  {
    const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
    MutexLock lock(state->mutex);
    while (!state->started &&
           state->told.wait_until(lock, deadline) != std::cv_status::timeout) {
    }
    if (!state->started) {
      state->shared.left_behind.store(true);
      thread.detach();
      return Status::DeadlineExceeded(
          "the file system of " + options.run_directory + " does not answer");
    }
    status = state->start_status;
  }
  if (!status.ok()) {
    thread.join();
    return status;
  }
  {
    MutexLock lock(state->close_mutex);
    state->thread = std::move(thread);
  }
  return std::unique_ptr<Writer>(new Writer(std::move(state)));
}

Writer::Writer(std::shared_ptr<State> state) : state_(std::move(state)) {}

Writer::~Writer() {
  if (inert()) {
    // A child's copy: its locks and its thread are those of the parent.  It is
    // neither destroyed nor freed.
    // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks)
    (void)new (std::nothrow) std::shared_ptr<State>(std::move(state_));
    return;
  }
  (void)Close(kCloseTimeout);
}

bool Writer::inert() const { return state_->inert(); }

// --- Offering ----------------------------------------------------------------

template <typename Fill>
bool Writer::State::Add(const Offer& offer, Fill fill) {
  shared.accounts.Offered(offer);
  GapReason reason = GapReason::kDiskNearlyFull;
  QueueItem* item = nullptr;
  const bool is_step = offer.type == RecordType::kStep;
  if (Admits(shared.disk_level.load(std::memory_order_relaxed), offer.type)) {
    item = shared.queue.Reserve(offer.n_bytes, shared.options.overflow, is_step,
                                &reason);
  }
  if (item == nullptr) {
    shared.accounts.Dropped(offer, reason);
    return false;
  }
  item->step = offer.step;
  item->type = offer.type;
  fill(item);
  shared.queue.Commit(item, is_step);
  return true;
}

bool Writer::State::Refuse(const Offer& offer, GapReason reason,
                           std::uint64_t n) {
  shared.accounts.Offered(offer, n);
  shared.accounts.Dropped(offer, reason, n);
  return false;
}

template <typename Entry>
bool Writer::State::AddTable(const Offer& offer, std::span<const Entry> entries,
                             std::uint64_t entry_bytes) {
  if (inert()) return false;
  if (entries.empty()) return true;
  const std::uint32_t n_definitions = shared.definitions.size();
  const bool is_known =
      std::all_of(entries.begin(), entries.end(), [&](const Entry& entry) {
        return entry.definition != 0 && entry.definition <= n_definitions;
      });
  if (!is_known || entries.size() > (limits::kTable - 64) / entry_bytes) {
    return Refuse(offer, GapReason::kRefused);
  }
  return Add(offer, [&](QueueItem* item) {
    std::memcpy(item->bytes(), entries.data(), entries.size_bytes());
  });
}

std::uint32_t Writer::Define(Definition definition) {
  if (inert()) return 0;
  return state_->shared.definitions.Define(std::move(definition));
}

const Definition* Writer::definition(std::uint32_t id) const {
  if (inert()) return nullptr;
  return state_->shared.definitions.Find(id);
}

bool Writer::AddRows(std::int64_t step, std::span<const Row> rows) {
  bool is_taken = true;
  do {
    const auto part = rows.first(std::min(rows.size(), kRowsPerRecord));
    rows = rows.subspan(part.size());
    if (!state_->AddTable({.step = step,
                           .n_bytes = part.size_bytes(),
                           .type = RecordType::kRows},
                          part, sizeof(Row))) {
      is_taken = false;
    }
  } while (!rows.empty());
  return is_taken;
}

bool Writer::AddTensor(std::int64_t step, std::uint32_t definition,
                       const TensorView& view, std::uint16_t call,
                       std::uint16_t micro_batch, std::uint32_t flags,
                       float zero_share) {
  if (inert()) return false;
  const Offer offer{
      .step = step, .n_bytes = view.n_bytes(), .type = RecordType::kTensor};
  const Definition* known = state_->shared.definitions.Find(definition);
  if (known == nullptr || view.device != DeviceKind::kCpu ||
      known->item_size != view.item_size || known->item_size == 0 ||
      !std::ranges::equal(known->shape, view.shape) ||
      offer.n_bytes > limits::kRecord / 2) {
    return state_->Refuse(offer, GapReason::kRefused);
  }
  return state_->Add(offer, [&](QueueItem* item) {
    item->subject = definition;
    item->call = call;
    item->micro_batch = micro_batch;
    item->flags = flags;
    item->zero_share = zero_share;
    if (item->n_bytes != 0) CopyContiguous(view, item->bytes());
  });
}

bool Writer::AddScalars(std::int64_t step, std::span<const Scalar> scalars) {
  return state_->AddTable({.step = step,
                           .n_bytes = scalars.size_bytes(),
                           .type = RecordType::kScalar},
                          scalars, 32);
}

bool Writer::AddSpans(std::int64_t step, std::span<const Span> spans) {
  return state_->AddTable(
      {.step = step, .n_bytes = spans.size_bytes(), .type = RecordType::kSpan},
      spans, 48);
}

bool Writer::AddEvent(std::int64_t step, const Event& event) {
  if (inert()) return false;
  const std::vector<std::byte> payload = EncodeEvent(event);
  const Offer offer{
      .step = step, .n_bytes = payload.size(), .type = RecordType::kEvent};
  if (payload.size() > limits::kEvent) {
    return state_->Refuse(offer, GapReason::kRefused);
  }
  return state_->Add(offer, [&](QueueItem* item) {
    item->subject = static_cast<std::uint32_t>(event.kind);
    std::memcpy(item->bytes(), payload.data(), payload.size());
  });
}

bool Writer::AddHistogram(std::int64_t step, const Histogram& histogram) {
  if (inert()) return false;
  const std::vector<std::byte> payload = EncodeHistogram(histogram);
  const Offer offer{
      .step = step, .n_bytes = payload.size(), .type = RecordType::kHistogram};
  if (state_->shared.definitions.Find(histogram.definition) == nullptr ||
      histogram.keys.size() != histogram.counts.size() ||
      payload.size() > limits::kTable) {
    return state_->Refuse(offer, GapReason::kRefused);
  }
  return state_->Add(offer, [&](QueueItem* item) {
    item->subject = histogram.definition;
    item->call = histogram.call;
    item->micro_batch = histogram.micro_batch;
    std::memcpy(item->bytes(), payload.data(), payload.size());
  });
}

void Writer::Refuse(std::int64_t step, std::uint64_t n, std::uint64_t n_bytes) {
  if (inert() || n == 0) return;
  (void)state_->Refuse(
      {.step = step, .n_bytes = n_bytes, .type = RecordType::kTensor},
      GapReason::kRefused, n);
}

bool Writer::EndStep(StepRecord step) {
  if (inert()) return false;
  const Accounts::StepCounts counts =
      state_->shared.accounts.TakeStep(step.step);
  step.offered = counts.offered;
  step.dropped = counts.dropped;
  return state_->Add(
      {.step = step.step, .n_bytes = sizeof(step), .type = RecordType::kStep},
      [&](QueueItem* item) {
        std::memcpy(item->bytes(), &step, sizeof(step));
      });
}

// --- Ending ------------------------------------------------------------------

Status Writer::Flush(bool durable, std::chrono::milliseconds timeout) {
  if (inert()) return Status::Closed("the writer belongs to a parent process");
  return state_->shared.queue.Flush(durable, timeout);
}

Status Writer::Close(std::chrono::milliseconds timeout) {
  if (inert()) return Status::Ok();
  State& state = *state_;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock close_lock(state.close_mutex);
  if (state.closed) return state.close_status;
  state.closed = true;
  state.shared.queue.Stop();
  {
    MutexLock lock(state.mutex);
    while (!state.finished &&
           state.told.wait_until(lock, deadline) != std::cv_status::timeout) {
    }
    if (state.finished) {
      state.close_status = state.finish_status;
    } else {
      state.close_status = Status::DeadlineExceeded(
          "close: the disk did not take the data in time");
    }
    if (!state.finished) {
      // The thread keeps the state alive until the disk lets go of it, if ever.
      state.shared.left_behind.store(true);
      state.shared.accounts.WriteOff();
      state.thread.detach();
      return state.close_status;
    }
  }
  state.thread.join();
  return state.close_status;
}

Counters Writer::counters() const {
  if (inert()) return {};
  Counters counters = state_->shared.accounts.counters();
  counters.queued_bytes = state_->shared.queue.used_bytes();
  return counters;
}

const std::string& Writer::directory() const { return state_->directory.path; }

std::uint32_t Writer::generation() const {
  return state_->directory.generation;
}

}  // namespace tdbg
