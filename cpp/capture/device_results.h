// Results under way from a device, and the records that they become.
//
// Thread safety: one thread at a time, as Completion says.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.h"
#include "capture/capture_item.h"
#include "capture/unit_summary_spec.h"
#include "format/record.h"
#include "reducers/cuda/driver.h"
#include "reducers/cuda/result_ring.h"
#include "writer/completion.h"

namespace tdbg {

class DeviceEngine;

// The parts of one row of a record.
struct RowTarget {
  static constexpr std::uint32_t kNoResult = ~std::uint32_t{0};

  std::uint32_t definition = 0;
  CallSite site;
  std::uint32_t flags = 0;
  DType dtype = DType::kInvalid;
  std::uint64_t count = 0;
  std::uint32_t result = kNoResult;  // In the block; kNoResult: no elements.
};

// A copy that an event follows, and what has to be kept until then.  Gives both
// back to the engine when it is destroyed.
class Fetch {
 public:
  Fetch(std::shared_ptr<DeviceEngine> engine,
        std::optional<cuda::ResultRing::Piece> piece, cuda::EventHandle event)
      : engine_(std::move(engine)), piece_(piece), event_(event) {}
  ~Fetch();
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  Completion::Answer Poll();
  // REQUIRES: there is a piece; Poll said kDone.
  [[nodiscard]] const std::byte* host() const {
    TDBG_DCHECK(piece_.has_value() && is_over_);
    return piece_->host;
  }

 private:
  const std::shared_ptr<DeviceEngine> engine_;
  const std::optional<cuda::ResultRing::Piece> piece_;
  const cuda::EventHandle event_;
  bool is_over_ = false;
};

// A completion that fails: the work that was to fill the record, with these
// rows if it is one of rows, never started.
std::unique_ptr<Completion> NeverCame(std::vector<RowTarget> rows = {});

// Rows from a block of DeviceRow.
std::unique_ptr<Completion> RowsFrom(std::unique_ptr<Fetch> fetch,
                                     std::vector<RowTarget> rows);

// A unit summary (active, out_of_range, count) from the first two of these
// arrays.
std::unique_ptr<Completion> UnitsFrom(std::unique_ptr<Fetch> fetch,
                                      std::uint64_t n_units,
                                      std::uint64_t count_per_unit,
                                      UnitSummarySpec spec);

// An encoded histogram from a counter for each key.
std::unique_ptr<Completion> BinsFrom(std::unique_ptr<Fetch> fetch,
                                     Histogram head);

// Values that are copied to the record itself.
std::unique_ptr<Completion> ValuesFrom(std::unique_ptr<Fetch> fetch);

// Values of which a copy may have been started before something failed.
std::unique_ptr<Completion> BrokenCopy(std::shared_ptr<DeviceEngine> engine);

}  // namespace tdbg
