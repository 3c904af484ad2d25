#include "capture/device_results.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "capture/device_engine.h"
#include "reducers/cuda/device_rows.h"
#include "reducers/cuda/entries.h"

namespace tdbg {
namespace {

template <typename T>
T Read(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

std::vector<std::uint32_t> DefinitionsOf(std::span<const RowTarget> rows) {
  std::vector<std::uint32_t> definitions;
  definitions.reserve(rows.size());
  for (const RowTarget& row : rows) definitions.push_back(row.definition);
  return definitions;
}

class NeverComing : public Completion {
 public:
  explicit NeverComing(std::vector<RowTarget> rows) : rows_(std::move(rows)) {}

  Answer Poll(std::span<std::byte>*) override { return Answer::kFailed; }
  [[nodiscard]] std::vector<std::uint32_t> Definitions() const override {
    return DefinitionsOf(rows_);
  }

 private:
  const std::vector<RowTarget> rows_;
};

// A record that is made from what was fetched to pinned memory.
class FromFetch : public Completion {
 public:
  explicit FromFetch(std::unique_ptr<Fetch> fetch) : fetch_(std::move(fetch)) {}

  Answer Poll(std::span<std::byte>* bytes) override {
    const Answer answer = fetch_->Poll();
    if (answer == Answer::kDone) Make(fetch_->host(), bytes);
    return answer;
  }

 private:
  virtual void Make(const std::byte* results, std::span<std::byte>* bytes) = 0;

  const std::unique_ptr<Fetch> fetch_;
};

class RowsArrival : public FromFetch {
 public:
  RowsArrival(std::unique_ptr<Fetch> fetch, std::vector<RowTarget> rows)
      : FromFetch(std::move(fetch)), rows_(std::move(rows)) {}

  [[nodiscard]] std::vector<std::uint32_t> Definitions() const override {
    return DefinitionsOf(rows_);
  }

 private:
  void Make(const std::byte* results, std::span<std::byte>* bytes) override {
    std::byte* out = bytes->data();
    for (const RowTarget& target : rows_) {
      Row row{.definition = target.definition,
              .call = target.site.call,
              .micro_batch = target.site.micro_batch,
              .flags = target.flags,
              .summary = Summary::Empty(ExtremeClassOf(target.dtype))};
      if (target.result != RowTarget::kNoResult) {
        row.summary = cuda::ToSummary(
            Read<cuda::DeviceRow>(results +
                                  target.result * sizeof(cuda::DeviceRow)),
            target.count, target.dtype);
      }
      std::memcpy(out, &row, sizeof(row));
      out += sizeof(row);
    }
  }

  const std::vector<RowTarget> rows_;
};

class UnitsArrival : public FromFetch {
 public:
  UnitsArrival(std::unique_ptr<Fetch> fetch, std::uint64_t n_units,
               std::uint64_t count_per_unit, UnitSummarySpec spec)
      : FromFetch(std::move(fetch)),
        n_units_(n_units),
        count_per_unit_(count_per_unit),
        spec_(spec) {}

 private:
  void Make(const std::byte* results, std::span<std::byte>* bytes) override {
    const std::size_t n = 2 * n_units_ * sizeof(std::uint64_t);
    std::memcpy(bytes->data(), results, n);
    if (spec_.rows_are_units) AddOutOfRangeToActive(results, bytes->data());
    for (std::uint64_t i = 0; i < n_units_; ++i) {
      std::memcpy(bytes->data() + n + i * sizeof(count_per_unit_),
                  &count_per_unit_, sizeof(count_per_unit_));
    }
  }

  // What is above zero and what is below it are not told apart.
  void AddOutOfRangeToActive(const std::byte* results, std::byte* out) const {
    constexpr std::size_t kSize = sizeof(std::uint64_t);
    for (std::uint64_t i = 0; i < n_units_; ++i) {
      const std::uint64_t active =
          Read<std::uint64_t>(results + i * kSize) +
          Read<std::uint64_t>(results + (n_units_ + i) * kSize);
      std::memcpy(out + i * kSize, &active, kSize);
    }
    std::memset(out + n_units_ * kSize, 0, n_units_ * kSize);
  }

  const std::uint64_t n_units_;
  const std::uint64_t count_per_unit_;
  const UnitSummarySpec spec_;
};

class BinsArrival : public FromFetch {
 public:
  BinsArrival(std::unique_ptr<Fetch> fetch, Histogram head)
      : FromFetch(std::move(fetch)), histogram_(std::move(head)) {}

 private:
  void Make(const std::byte* results, std::span<std::byte>* bytes) override {
    for (std::size_t key = 0; key < cuda::kBins; ++key) {
      const auto count =
          Read<std::uint32_t>(results + key * sizeof(std::uint32_t));
      if (count == 0) continue;
      histogram_.keys.push_back(static_cast<std::uint16_t>(key));
      histogram_.counts.push_back(count);
    }
    const std::vector<std::byte> encoded = EncodeHistogram(histogram_);
    // There is room for as many bins as the tensor has elements.
    *bytes = bytes->first(std::min(bytes->size(), encoded.size()));
    std::memcpy(bytes->data(), encoded.data(), bytes->size());
  }

  Histogram histogram_;
};

class ValuesArrival : public Completion {
 public:
  explicit ValuesArrival(std::unique_ptr<Fetch> fetch)
      : fetch_(std::move(fetch)) {}
  Answer Poll(std::span<std::byte>*) override { return fetch_->Poll(); }

 private:
  const std::unique_ptr<Fetch> fetch_;
};

class BrokenArrival : public Completion {
 public:
  explicit BrokenArrival(std::shared_ptr<DeviceEngine> engine)
      : engine_(std::move(engine)) {}
  Answer Poll(std::span<std::byte>*) override {
    return engine_->AreCopiesOver() ? Answer::kFailed : Answer::kPending;
  }

 private:
  const std::shared_ptr<DeviceEngine> engine_;
};

}  // namespace

Fetch::~Fetch() { engine_->GiveBack(piece_, event_, is_over_); }

Completion::Answer Fetch::Poll() {
  Completion::Answer answer = engine_->Query(event_);
  is_over_ = answer == Completion::Answer::kDone;
  // The event may have failed while the copy did not: what it is written to
  // stays where it is until it is over.
  if (answer == Completion::Answer::kFailed && !engine_->AreCopiesOver()) {
    answer = Completion::Answer::kPending;
  }
  return answer;
}

std::unique_ptr<Completion> NeverCame(std::vector<RowTarget> rows) {
  return std::make_unique<NeverComing>(std::move(rows));
}

std::unique_ptr<Completion> RowsFrom(std::unique_ptr<Fetch> fetch,
                                     std::vector<RowTarget> rows) {
  return std::make_unique<RowsArrival>(std::move(fetch), std::move(rows));
}

std::unique_ptr<Completion> UnitsFrom(std::unique_ptr<Fetch> fetch,
                                      std::uint64_t n_units,
                                      std::uint64_t count_per_unit,
                                      UnitSummarySpec spec) {
  return std::make_unique<UnitsArrival>(std::move(fetch), n_units,
                                        count_per_unit, spec);
}

std::unique_ptr<Completion> BinsFrom(std::unique_ptr<Fetch> fetch,
                                     Histogram head) {
  return std::make_unique<BinsArrival>(std::move(fetch), std::move(head));
}

std::unique_ptr<Completion> ValuesFrom(std::unique_ptr<Fetch> fetch) {
  return std::make_unique<ValuesArrival>(std::move(fetch));
}

std::unique_ptr<Completion> BrokenCopy(std::shared_ptr<DeviceEngine> engine) {
  return std::make_unique<BrokenArrival>(std::move(engine));
}

}  // namespace tdbg
