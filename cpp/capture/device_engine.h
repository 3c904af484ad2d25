// DeviceEngine is what DeviceCapture keeps of one device: the kernels, the
// blocks of results that steps and graphs fill, what is on its way to the host,
// and whether the device still works.
//
// Rows of a step go into blocks of kRowsPerBlock results in a ring of device
// memory; a block that is full or whose step ends is copied to its pinned twin
// on a stream of our own, and becomes a record that is complete when the event
// behind the copy is.  Rows that are launched into a graph go into blocks that
// are the graph's, until the driver says that the graph is gone.
//
// Thread safety: all methods from any thread; none calls the writer.
//
// Errors: the first call of the driver that fails ends the use of the device
// (state().reason); bounds of our own, and streams that are being captured at
// the wrong moment, do not.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "capture/capture_item.h"
#include "capture/device_capture.h"
#include "capture/device_results.h"
#include "capture/staging_lock.h"
#include "reducers/cuda/device.h"
#include "reducers/cuda/device_reducer.h"
#include "reducers/cuda/result_ring.h"

namespace tdbg {

class DeviceEngine : public std::enable_shared_from_this<DeviceEngine> {
 public:
  static constexpr std::uint32_t kRowsPerBlock = 1024;
  static constexpr std::size_t kResultBytes =
      kRowsPerBlock * sizeof(cuda::DeviceRow);
  static constexpr std::size_t kRingBytes = 16ULL << 20;
  // Steps that have begun and not ended; beyond them the results of the oldest
  // are fetched before its end.
  static constexpr std::size_t kMaxOpenSteps = 16;
  // Rows of a block, with those that repeat others or have no elements.
  static constexpr std::size_t kMaxRowsOfBlock = 4096;

  // A record that waits for its results.
  struct Ready {
    std::int64_t step = 0;
    std::size_t n_rows = 0;
    std::unique_ptr<Completion> completion;
  };
  using ReadyList = std::vector<Ready>;

  // One row to launch for, or (target.result == kNoResult) of no element.
  struct Launch {
    cuda::TensorEntry entry;
    RowTarget target;
  };

  // Never null; where the device cannot be used, state() says why.
  static std::shared_ptr<DeviceEngine> Open(Result<const cuda::Driver*> driver,
                                            int device,
                                            std::shared_ptr<StagingLock> lock);
  // Waits for the device, for kPatience at most; frees nothing that it may
  // still use.
  ~DeviceEngine();
  DeviceEngine(const DeviceEngine&) = delete;
  DeviceEngine& operator=(const DeviceEngine&) = delete;

  [[nodiscard]] bool is_usable() const {
    return is_usable_.load(std::memory_order_acquire);
  }
  [[nodiscard]] DeviceState state();

  // Launches for the rows of a step, in order, and says what became of how many
  // of them: the first `n_taken` are taken, and the others refused (and counted
  // here, not by the writer) or left.
  struct Outcome {
    std::size_t n_taken = 0;
    DeviceAnswer others = DeviceAnswer::kCaptured;
  };
  Outcome AddRows(std::int64_t step, std::span<Launch> launches, void* stream,
                  ReadyList* ready);
  bool Repeat(std::int64_t step, std::uint32_t definition, CallSite site,
              std::uint32_t of, CallSite of_site, void* stream);
  void EndStep(std::int64_t step, ReadyList* ready);
  void EndAllSteps(ReadyList* ready);

  std::uint64_t CaptureId(void* stream);
  // Whether work can be put on the stream, to be done at once.
  bool IsFree(void* stream);
  bool Replayed(std::uint64_t graph, std::int64_t step, void* stream,
                ReadyList* ready);

  // Launches the kernel; `*fetch` is then its results on their way.
  DeviceAnswer CountUnits(cuda::UnitEntry entry, void* stream,
                          std::unique_ptr<Fetch>* fetch);
  DeviceAnswer CountBins(cuda::BinEntry entry, void* stream,
                         std::unique_ptr<Fetch>* fetch);

  // Whether `staging` can be copied to; locks it at the first call.
  bool CanCopy(std::span<std::byte> staging);
  // Copies to `to`, which lies in it, after what the stream has to do.
  std::unique_ptr<Completion> Copy(const void* from, std::span<std::byte> to,
                                   void* stream);
  void Fence(void* stream);

  void CountRefused();

  // By what is under way, from the writer's thread.
  Completion::Answer Query(cuda::EventHandle event);
  // Whether no copy is under way, or none will ever end.
  bool AreCopiesOver();
  // `is_over`: the device is done with the piece (if any) and the event.
  void GiveBack(const std::optional<cuda::ResultRing::Piece>& piece,
                cuda::EventHandle event, bool is_over);

 private:
  static constexpr std::chrono::milliseconds kPatience{1000};

  struct Block {
    cuda::DeviceAddress results = 0;
    std::optional<cuda::ResultRing::Piece> piece;  // Of a step.
    std::vector<RowTarget> rows;
    std::uint32_t n_results = 0;
  };
  struct GraphRows {
    std::shared_ptr<std::atomic<bool>> is_gone;
    std::vector<Block> blocks;
    // Behind the copies of the replays so far; null before the first.
    cuda::EventHandle copied = nullptr;
  };
  struct Orphan {
    std::optional<cuda::ResultRing::Piece> piece;
    cuda::EventHandle event = nullptr;
  };

  DeviceEngine(const cuda::Driver* driver, std::shared_ptr<StagingLock> lock)
      : driver_(driver), lock_(std::move(lock)) {}
  Status Start(int device) TDBG_REQUIRES(mutex_);
  // Ends the use of the device.
  void Fail(const Status& why) TDBG_EXCLUDES(reason_mutex_);
  // The answer of a call that did not succeed.
  DeviceAnswer Failed(const Status& why);

  Result<Block*> BlockFor(std::int64_t step, std::size_t n, ReadyList* ready)
      TDBG_REQUIRES(mutex_);
  Result<Block*> GraphBlockFor(const cuda::Device::Captured& captured)
      TDBG_REQUIRES(mutex_);
  Result<GraphRows*> GraphFor(const cuda::Device::Captured& captured)
      TDBG_REQUIRES(mutex_);
  Status LaunchInto(std::span<Launch> launches, cuda::Place place, Block* block)
      TDBG_REQUIRES(mutex_);
  void CloseBlock(std::int64_t step, Block block, ReadyList* ready)
      TDBG_REQUIRES(mutex_);
  Result<std::unique_ptr<Fetch>> FetchBlock(const Block& block)
      TDBG_REQUIRES(mutex_);
  Result<std::unique_ptr<Fetch>> FetchGraphBlock(const Block& block,
                                                 cuda::Stream stream)
      TDBG_REQUIRES(mutex_);
  Status MarkCopied(GraphRows* graph, cuda::Stream stream)
      TDBG_REQUIRES(mutex_);
  // Copies the piece's first bytes to the host, after what `stream` has to do.
  Status StartFetch(const cuda::ResultRing::Piece& piece, std::size_t n_bytes,
                    cuda::Stream stream, cuda::EventHandle event)
      TDBG_REQUIRES(mutex_);
  template <typename Run>
  DeviceAnswer Count(std::size_t n_bytes, void* stream, Run run,
                     std::unique_ptr<Fetch>* fetch);
  Status StartCopy(const void* from, std::span<std::byte> to,
                   cuda::Stream stream, cuda::EventHandle event)
      TDBG_REQUIRES(mutex_);
  Result<cuda::EventHandle> TakeEvent() TDBG_REQUIRES(mutex_);
  void Reclaim() TDBG_REQUIRES(mutex_);
  // Whether nothing that was given back is under way.
  bool AreOrphansOver();
  Status FreeUnfetched() TDBG_REQUIRES(mutex_);
  void ForgetGraphs() TDBG_REQUIRES(mutex_);
  // Whether nothing is under way that was started here.
  bool IsOver() TDBG_REQUIRES(mutex_);

  // Constant after Open.
  const cuda::Driver* const driver_;
  const std::shared_ptr<StagingLock> lock_;
  std::unique_ptr<cuda::Device> device_;
  std::optional<cuda::ResultRing> ring_;
  cuda::Stream fetch_stream_ = nullptr;
  cuda::Stream copy_stream_ = nullptr;
  cuda::EventHandle last_copy_ = nullptr;

  std::atomic<bool> is_usable_{false};
  std::atomic<std::uint64_t> refused_{0};

  // Held while the driver is called from producers; before the next two.
  Mutex mutex_;
  std::optional<cuda::DeviceReducer> reducer_ TDBG_GUARDED_BY(mutex_);
  std::map<std::int64_t, Block> steps_ TDBG_GUARDED_BY(mutex_);
  std::map<std::uint64_t, GraphRows> graphs_ TDBG_GUARDED_BY(mutex_);
  std::vector<cuda::DeviceAddress> free_blocks_ TDBG_GUARDED_BY(mutex_);
  // Blocks of steps that ended while one of their streams was being captured.
  std::vector<Orphan> unfetched_ TDBG_GUARDED_BY(mutex_);
  std::uint64_t n_rows_ TDBG_GUARDED_BY(mutex_) = 0;
  std::uint64_t n_copies_ TDBG_GUARDED_BY(mutex_) = 0;
  std::uint64_t copied_bytes_ TDBG_GUARDED_BY(mutex_) = 0;
  bool uses_lock_ TDBG_GUARDED_BY(mutex_) = false;

  Mutex reason_mutex_;
  std::string reason_ TDBG_GUARDED_BY(reason_mutex_);
  std::string values_reason_ TDBG_GUARDED_BY(reason_mutex_);
  std::uint64_t n_failures_ TDBG_GUARDED_BY(reason_mutex_) = 0;

  Mutex pool_mutex_;
  std::vector<cuda::EventHandle> free_events_ TDBG_GUARDED_BY(pool_mutex_);
  // Given back before the device was done with them.
  std::vector<Orphan> orphans_ TDBG_GUARDED_BY(pool_mutex_);
};

}  // namespace tdbg
