// Device is one CUDA device with tdbg's kernels loaded, and the owner of all
// that is allocated for it: memory, pinned memory, events, streams.  They are
// pooled by their users and freed together, at the end.
//
// It uses the device's primary context, as frameworks do, and is made outside
// of the capture of a graph as well as inside: while a Scope is alive, the
// calling thread has the context current and may allocate and query although
// some stream is being captured.
//
// Thread safety: Scope, driver() and Launch may be used by any thread; the rest
// by one at a time.
//
// Errors: Open says what is missing.  Whatever fails later leaves everything as
// it was before the call.  kLimitExceeded is no fault of the device: a bound of
// ours is reached.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "reducers/cuda/driver.h"

namespace tdbg::cuda {

enum class Kernel : std::uint8_t {
  kStatistics,
  kInlineStatistics,
  kUnitCounts,
  kHistogram,
};

class Device {
 public:
  // Bound of the device's memory that is allocated.
  static constexpr std::uint64_t kMaxBytes = 64ULL << 20;

  // The kernels are those of the build, or the file that TDBG_CUDA_KERNELS
  // names (a fatbin, cubin or PTX).
  // REQUIRES: `driver` outlives this.
  static Result<std::unique_ptr<Device>> Open(const Driver* driver, int index);
  // Frees everything, unless Abandon was called.  REQUIRES: then the device has
  // nothing to do with any of it any more; otherwise this would wait.
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Makes the device current for the calling thread.
  class Scope {
   public:
    // Tries again, up to so often: for those who could not come later.
    explicit Scope(const Device& device, int n_attempts = 1);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    [[nodiscard]] const Status& status() const { return status_; }

   private:
    Status Enter(const Device& device);
    void Leave();

    const Driver& driver_;
    int mode_ = kCaptureModeRelaxed;
    bool is_pushed_ = false;
    bool is_relaxed_ = false;
    Status status_;
  };

  [[nodiscard]] const Driver& driver() const { return *driver_; }
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] std::uint64_t allocated_bytes() const {
    return n_bytes_.load(std::memory_order_relaxed);
  }

  // REQUIRES, for all that follow: a Scope of this device is alive.

  // Launches with as many blocks as can be resident, but no more than
  // `n_tiles`.  `arguments` as for cuLaunchKernel.
  [[nodiscard]] Status Launch(Kernel kernel, std::uint64_t n_tiles,
                              Stream stream, void** arguments) const;

  Result<DeviceAddress> Allocate(std::size_t n);
  Result<std::byte*> AllocatePinned(std::size_t n);
  Result<EventHandle> NewEvent();
  Result<Stream> NewStream();

  // The graph that the stream is being captured into; kLimitExceeded if it
  // cannot be determined or cannot be launched into any more.
  struct Captured {
    std::uint64_t id = 0;  // 0: nothing.
    Graph graph = nullptr;
  };
  [[nodiscard]] Result<Captured> CapturedInto(Stream stream) const;

  // Whether the streams that were made here have nothing to do; true, too, when
  // the device does not answer any more.
  [[nodiscard]] bool is_idle() const;
  // Frees nothing, ever: the device may still be at work.
  void Abandon() { is_abandoned_ = true; }

 private:
  Device(const Driver* driver, int index) : driver_(driver), index_(index) {}
  Status Load();
  Status LoadKernels();
  void FreeAll();

  // Constant after Open.
  const Driver* const driver_;
  const int index_;
  int handle_ = 0;
  Context context_ = nullptr;
  Module module_ = nullptr;
  struct Loaded {
    Function function = nullptr;
    unsigned n_blocks = 0;  // That are resident at once.
  };
  std::array<Loaded, 4> kernels_{};

  std::atomic<std::uint64_t> n_bytes_{0};
  std::vector<DeviceAddress> memory_;
  std::vector<std::byte*> pinned_;
  std::vector<EventHandle> events_;
  std::vector<Stream> streams_;
  bool is_abandoned_ = false;
};

}  // namespace tdbg::cuda
