// Where rows go: a RowSink takes them, a RowGate shuts it off, and a RowBuffer
// collects the rows of about a second; of cores and devices, about 5 seconds.
//
// Thread safety: a RowGate may be used from any thread, a RowBuffer belongs to
// one.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace tdbg {

class RowSink {
 public:
  RowSink() = default;
  RowSink(const RowSink&) = delete;
  RowSink& operator=(const RowSink&) = delete;
  virtual ~RowSink() = default;

  // Takes whole rows of a table, called <table> or <table>/<instance>, with
  // columns as written by python/tdbg/run/profile_tables.py.
  virtual void Write(const std::string& table, const std::string& columns,
                     std::span<const std::byte> rows) = 0;
  // Take an event, as JSON: what the machine is; and what has changed since.
  virtual void WriteMachine(const std::string& json) = 0;
  virtual void WriteChange(const std::string& json) = 0;
};

// A sink that threads may outlive: once it is shut, nothing reaches the sink.
class RowGate {
 public:
  explicit RowGate(std::unique_ptr<RowSink> sink) : sink_(std::move(sink)) {}

  void Write(const std::string& table, const std::string& columns,
             std::span<const std::byte> rows);
  void WriteMachine(const std::string& json);
  void WriteChange(const std::string& json);
  // Returns when no call of the sink is under way any more.
  void Shut();

 private:
  Mutex mutex_;
  std::unique_ptr<RowSink> sink_ TDBG_GUARDED_BY(mutex_);
};

class RowBuffer {
 public:
  static constexpr std::size_t kMostRows = 64;  // Of a table.
  static constexpr std::int64_t kLongestNs = 1'000'000'000;
  // Of tables that there are many of, whose records would be larger than their
  // rows.  A training that is killed loses as much of them.
  static constexpr std::int64_t kLongestOfManyNs = 5'000'000'000;

  explicit RowBuffer(std::shared_ptr<RowGate> gate) : gate_(std::move(gate)) {}

  template <typename Row>
  void Add(const Row& row, const std::string& instance = {}) {
    std::string table = Row::kTable;
    if (!instance.empty()) table += "/" + instance;
    AddBytes(table, Row::kColumns, std::as_bytes(std::span(&row, 1)));
  }
  // A row of a table whose columns are not known before.
  void AddBytes(const std::string& table, const std::string& columns,
                std::span<const std::byte> row);

  // Writes what would otherwise wait for too long, if it is next called in
  // `interval_ns`.
  void WriteDue(std::int64_t now_ns, std::int64_t interval_ns);
  void WriteAll();

 private:
  struct Rows {
    std::string columns;
    std::vector<std::byte> bytes;
    std::size_t n = 0;
    std::int64_t longest_ns = kLongestNs;
    std::int64_t oldest_ns = 0;  // When it was first seen to wait; 0: not yet.
  };
  void WriteTable(const std::string& table, Rows* rows);

  const std::shared_ptr<RowGate> gate_;
  std::map<std::string, Rows> tables_;
};

}  // namespace tdbg
