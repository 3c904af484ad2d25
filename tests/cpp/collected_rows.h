// A sink that keeps what a sampler writes.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "sampler/row_sink.h"

namespace tdbg::testing {

// What was written; the sinks of it may come and go.
class CollectedRows {
 public:
  class Sink : public RowSink {
   public:
    explicit Sink(CollectedRows* rows) : rows_(rows) {}
    void Write(const std::string& table, const std::string& columns,
               std::span<const std::byte> rows) override {
      const std::lock_guard lock(rows_->mutex_);
      rows_->columns_[table] = columns;
      auto& bytes = rows_->bytes_[table];
      bytes.insert(bytes.end(), rows.begin(), rows.end());
      rows_->changed_.notify_all();
    }
    void WriteChange(const std::string& json) override { WriteMachine(json); }
    void WriteMachine(const std::string& json) override {
      const std::lock_guard lock(rows_->mutex_);
      rows_->events_.push_back(json);
      rows_->changed_.notify_all();
    }

   private:
    CollectedRows* const rows_;
  };
  std::unique_ptr<RowSink> sink() { return std::make_unique<Sink>(this); }

  template <typename Row>
  std::vector<Row> Of(const std::string& instance = {}) {
    const std::lock_guard lock(mutex_);
    return Parsed<Row>(instance);
  }
  std::vector<std::byte> Bytes(const std::string& table) {
    const std::lock_guard lock(mutex_);
    return bytes_[table];
  }
  std::string Columns(const std::string& table) {
    const std::lock_guard lock(mutex_);
    return columns_[table];
  }
  std::vector<std::string> events() {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  // Waits until `holds`, which is asked at each change; false after 30 s.
  template <typename Row>
  bool Wait(const std::string& instance,
            const std::function<bool(const std::vector<Row>&)>& holds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30),
                             [&] { return holds(Parsed<Row>(instance)); });
  }
  template <typename Row>
  bool WaitFor(std::size_t n, const std::string& instance = {}) {
    return Wait<Row>(instance,
                     [n](const auto& rows) { return rows.size() >= n; });
  }

 private:
  template <typename Row>
  std::vector<Row> Parsed(const std::string& instance) {
    std::string table = Row::kTable;
    if (!instance.empty()) table += "/" + instance;
    const auto& bytes = bytes_[table];
    std::vector<Row> rows(bytes.size() / sizeof(Row));
    if (!rows.empty()) {
      std::memcpy(static_cast<void*>(rows.data()), bytes.data(),
                  rows.size() * sizeof(Row));
    }
    return rows;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<std::byte>> bytes_;
  std::map<std::string, std::string> columns_;
  std::vector<std::string> events_;
};

}  // namespace tdbg::testing
