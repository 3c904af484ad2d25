#include "writer/writer.h"

#include <pthread.h>

#include <csignal>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "writer/writer_state.h"

namespace tdbg {
namespace {

// How long Open waits for a file system that does not answer.
constexpr std::chrono::seconds kStartTimeout{30};

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
  if (options.shard_age.count() < 0 ||
      options.shard_age > std::chrono::hours(24)) {
    return Status::InvalidArgument("shard_age must be from 0 to a day, got " +
                                   std::to_string(options.shard_age.count()) +
                                   " ms");
  }
  if (options.spool_bytes != 0 &&
      options.spool_bytes / 2 < options.shard_bytes) {
    return Status::InvalidArgument(
        "spool_bytes must be at least twice shard_bytes, got " +
        std::to_string(options.spool_bytes) + " and " +
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

void Writer::State::ThreadMain(const std::shared_ptr<State>& state) {
  // What debuggers and top show; at most 15 characters.
  (void)pthread_setname_np(pthread_self(), "tdbg-writer");
  // Whoever cancels threads that are not his own is not to end this one.
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  Status status;
  try {
    WriterThread thread(&state->shared);
    status = thread.Start();
    {
      MutexLock lock(state->mutex);
      state->directory = thread.directory();
      state->start_status = status;
      state->started = true;
      state->reported.notify_all();
    }
    if (status.ok()) status = thread.Run();
  } catch (...) {
    // Of the start, or of the thread's own end: Run lets none out.
    status = CurrentException();
  }
  MutexLock lock(state->mutex);
  if (!state->started) {
    state->start_status = status;
    state->started = true;
  }
  state->finish_status = std::move(status);
  state->finished = true;
  state->reported.notify_all();
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
    while (!state->started && state->reported.wait_until(lock, deadline) !=
                                  std::cv_status::timeout) {
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
    while (!state.finished && state.reported.wait_until(lock, deadline) !=
                                  std::cv_status::timeout) {
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
      state.shared.record_counters.WriteOff();
      state.thread.detach();
      return state.close_status;
    }
  }
  state.thread.join();
  return state.close_status;
}

Counters Writer::counters() const {
  if (inert()) return {};
  Counters counters = state_->shared.record_counters.totals();
  counters.queued_bytes = state_->shared.queue.used_bytes();
  counters.silence = state_->shared.queue.silence();
  const Sampler::Counts sampled = state_->shared.sampler.counts();
  counters.steps_kept = sampled.kept;
  counters.steps_left_out = sampled.left_out;
  return counters;
}

std::uint64_t Writer::n_lost() const {
  return inert() ? 0 : state_->shared.record_counters.n_lost();
}

std::vector<LostForReason> Writer::lost_tensors() const {
  if (inert()) return {};
  return state_->shared.record_counters.lost_tensors();
}

const std::string& Writer::directory() const { return state_->directory.path; }

std::uint32_t Writer::generation() const {
  return state_->directory.generation;
}

}  // namespace tdbg
