// A file system that fails the n-th call on purpose (the idea is SQLite's VFS).
//
// Every call that the writing side makes is counted; FaultPlan says which of
// them fail and how.  What does not fail is passed on to the operating system.
//
// Thread safety: all of it.

#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace tdbg::testing {

enum class Call : std::uint8_t {
  kOpen,
  kClose,
  kPwrite,
  kPwriteDirect,  // Of a descriptor in that mode.
  kSetDirect,
  kFdatasync,
  kFsync,
  kFallocate,
  kFtruncate,
  kMkdir,
  kUnlink,
  kRename,
  kLink,
  kPread,
  kFreeBytes,
  kList,
};

struct FaultPlan {
  static constexpr std::uint64_t kNever =
      std::numeric_limits<std::uint64_t>::max();

  std::uint64_t first = kNever;  // Calls are counted from 1.
  std::uint64_t count = 1;       // How many calls fail, from `first` on,
  std::uint64_t every = 1;       // each so many calls after the one before,
  bool for_ever = false;         // or all of them.
  int error = EIO;
  bool is_short = false;  // A write takes half of what it is given.
  bool throws = false;    // Instead of returning the error (not of a close).
  // Only these calls count; empty: all.
  std::vector<Call> only;
};

// No std::exception: nobody may rely on that.
struct Thrown {};

class FaultyFileSystem : public FileSystem {
 public:
  explicit FaultyFileSystem(FaultPlan plan = {}) : plan_(std::move(plan)) {}

  void SetPlan(FaultPlan plan) {
    const std::lock_guard lock(mutex_);
    plan_ = std::move(plan);
    n_calls_ = 0;
    n_faults_ = 0;
  }
  // Writes and syncs wait from now on, until Release().
  void Hang() {
    const std::lock_guard lock(mutex_);
    hangs_ = true;
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    hangs_ = false;
    released_.notify_all();
  }
  // Writes take their time from now on; 0: no more than they need.
  void SetBytesPerSecond(std::uint64_t rate) {
    const std::lock_guard lock(mutex_);
    bytes_per_second_ = rate;
    released_.notify_all();
  }
  // What FreeBytes answers; unset again by kNever.
  void SetFreeBytes(std::uint64_t n) {
    const std::lock_guard lock(mutex_);
    free_bytes_ = n;
  }

  [[nodiscard]] std::uint64_t n_calls() {
    const std::lock_guard lock(mutex_);
    return n_calls_;
  }
  [[nodiscard]] std::uint64_t n_faults() {
    const std::lock_guard lock(mutex_);
    return n_faults_;
  }
  [[nodiscard]] std::uint64_t n_hanging() {
    const std::lock_guard lock(mutex_);
    return n_hanging_;
  }
  // How many calls of each kind there were.
  [[nodiscard]] std::map<Call, std::uint64_t> calls() {
    const std::lock_guard lock(mutex_);
    return by_kind_;
  }

  int Open(const char* path, int flags, unsigned mode) override {
    if (const int error = Fault(Call::kOpen)) return -error;
    return system_->Open(path, flags, mode);
  }
  int Close(int fd) override {
    {
      const std::lock_guard lock(mutex_);
      direct_.erase(fd);
    }
    const int error = Fault(Call::kClose);
    const int result = system_->Close(fd);
    return error != 0 ? -error : result;
  }
  std::int64_t Pwrite(int fd, const void* data, std::size_t n,
                      std::uint64_t offset) override {
    WaitWhileHanging();
    TakeTimeFor(n);
    bool is_short = false;
    const Call call = IsDirect(fd) ? Call::kPwriteDirect : Call::kPwrite;
    if (const int error = Fault(call, &is_short)) return -error;
    if (is_short && n > 1) n /= 2;
    // What a strict file system says to a write that is not aligned.
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (call == Call::kPwriteDirect && !is_short &&
        (address | n | offset) % File::kDirectAlignment != 0) {
      return -EINVAL;
    }
    return system_->Pwrite(fd, data, n, offset);
  }
  // Always possible, also where the system cannot: the write is then as ever.
  int SetDirect(int fd, bool on) override {
    if (const int error = Fault(Call::kSetDirect)) return -error;
    (void)system_->SetDirect(fd, on);
    const std::lock_guard lock(mutex_);
    if (on) {
      direct_.insert(fd);
    } else {
      direct_.erase(fd);
    }
    return 0;
  }
  int Fdatasync(int fd) override {
    WaitWhileHanging();
    if (const int error = Fault(Call::kFdatasync)) return -error;
    return system_->Fdatasync(fd);
  }
  int Fsync(int fd) override {
    WaitWhileHanging();
    if (const int error = Fault(Call::kFsync)) return -error;
    return system_->Fsync(fd);
  }
  int Fallocate(int fd, std::uint64_t offset, std::uint64_t n) override {
    if (const int error = Fault(Call::kFallocate)) return -error;
    return system_->Fallocate(fd, offset, n);
  }
  int Ftruncate(int fd, std::uint64_t length) override {
    if (const int error = Fault(Call::kFtruncate)) return -error;
    return system_->Ftruncate(fd, length);
  }
  int LinkCount(int fd) override { return system_->LinkCount(fd); }
  int Mkdir(const char* path, unsigned mode) override {
    if (const int error = Fault(Call::kMkdir)) return -error;
    return system_->Mkdir(path, mode);
  }
  int Unlink(const char* path) override {
    if (const int error = Fault(Call::kUnlink)) return -error;
    return system_->Unlink(path);
  }
  int Rename(const char* from, const char* to) override {
    if (const int error = Fault(Call::kRename)) return -error;
    return system_->Rename(from, to);
  }
  int Link(const char* from, const char* to) override {
    if (const int error = Fault(Call::kLink)) return -error;
    return system_->Link(from, to);
  }
  std::int64_t Pread(int fd, void* data, std::size_t n,
                     std::uint64_t offset) override {
    if (const int error = Fault(Call::kPread)) return -error;
    return system_->Pread(fd, data, n, offset);
  }
  std::int64_t Size(const char* path) override { return system_->Size(path); }
  int Lock(int fd, bool on) override { return system_->Lock(fd, on); }
  int FreeBytes(const char* path, std::uint64_t* n) override {
    if (const int error = Fault(Call::kFreeBytes)) return -error;
    const int result = system_->FreeBytes(path, n);
    const std::lock_guard lock(mutex_);
    if (free_bytes_ != FaultPlan::kNever) *n = free_bytes_;
    return result;
  }
  int BytesIn(const char* path, std::uint64_t* n) override {
    if (const int error = Fault(Call::kList)) return -error;
    return system_->BytesIn(path, n);
  }
  int List(const char* path, std::vector<std::string>* names) override {
    if (const int error = Fault(Call::kList)) return -error;
    return system_->List(path, names);
  }

 protected:
  bool IsDirect(int fd) {
    const std::lock_guard lock(mutex_);
    return direct_.contains(fd);
  }

 private:
  // The errno to fail with, or 0.
  int Fault(Call call, bool* is_short = nullptr) {
    const std::lock_guard lock(mutex_);
    ++by_kind_[call];
    if (!plan_.only.empty() && std::find(plan_.only.begin(), plan_.only.end(),
                                         call) == plan_.only.end()) {
      return 0;
    }
    const std::uint64_t n = ++n_calls_;
    if (n < plan_.first) return 0;
    const std::uint64_t past = n - plan_.first;
    const bool hit = plan_.for_ever || (past % plan_.every == 0 &&
                                        past / plan_.every < plan_.count);
    if (!hit) return 0;
    ++n_faults_;
    if (plan_.throws && call != Call::kClose) throw Thrown();
    if (!plan_.is_short) return plan_.error;
    if (is_short != nullptr) *is_short = true;
    return 0;
  }
  void TakeTimeFor(std::size_t n) {
    std::unique_lock lock(mutex_);
    if (bytes_per_second_ == 0) return;
    const auto end =
        std::chrono::steady_clock::now() +
        std::chrono::microseconds(n * 1'000'000 / bytes_per_second_);
    released_.wait_until(lock, end, [this] { return bytes_per_second_ == 0; });
  }
  void WaitWhileHanging() {
    std::unique_lock lock(mutex_);
    ++n_hanging_;
    released_.wait(lock, [this] { return !hangs_; });
    --n_hanging_;
  }

  FileSystem* const system_ = FileSystem::Posix();
  std::mutex mutex_;
  std::condition_variable released_;
  FaultPlan plan_;
  bool hangs_ = false;
  std::uint64_t bytes_per_second_ = 0;
  std::uint64_t free_bytes_ = FaultPlan::kNever;
  std::uint64_t n_calls_ = 0;
  std::uint64_t n_faults_ = 0;
  std::uint64_t n_hanging_ = 0;
  std::map<Call, std::uint64_t> by_kind_;
  std::set<int> direct_;
};

}  // namespace tdbg::testing
