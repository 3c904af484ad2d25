#include "sampler/row_sink.h"

#include <utility>

#include "sampler/profile_rows.h"

namespace tdbg {
namespace {

// Whether it is a device's table, or that of the cores.
bool IsOneOfMany(const std::string& table) {
  return table.find('/') != std::string::npos || table == kCoreTable;
}

}  // namespace

void RowGate::Write(const std::string& table, const std::string& columns,
                    std::span<const std::byte> rows) {
  MutexLock lock(mutex_);
  if (sink_ != nullptr) sink_->Write(table, columns, rows);
}

void RowGate::WriteMachine(const std::string& json) {
  MutexLock lock(mutex_);
  if (sink_ != nullptr) sink_->WriteMachine(json);
}

void RowGate::WriteChange(const std::string& json) {
  MutexLock lock(mutex_);
  if (sink_ != nullptr) sink_->WriteChange(json);
}

void RowGate::Shut() {
  MutexLock lock(mutex_);
  sink_.reset();
}

void RowBuffer::AddBytes(const std::string& table, const std::string& columns,
                         std::span<const std::byte> row) {
  const auto [at, is_new] = tables_.try_emplace(table);
  Rows& rows = at->second;
  if (is_new && IsOneOfMany(table)) rows.longest_ns = kLongestOfManyNs;
  if (rows.columns != columns) {
    WriteTable(table, &rows);
    rows.columns = columns;
  }
  rows.bytes.insert(rows.bytes.end(), row.begin(), row.end());
  if (++rows.n >= kMostRows) WriteTable(table, &rows);
}

void RowBuffer::WriteTable(const std::string& table, Rows* rows) {
  if (rows->n == 0) return;
  gate_->Write(table, rows->columns, rows->bytes);
  rows->bytes.clear();
  rows->n = 0;
  rows->oldest_ns = 0;
}

void RowBuffer::WriteDue(std::int64_t now_ns, std::int64_t interval_ns) {
  for (auto& [table, rows] : tables_) {
    if (rows.n == 0) continue;
    if (rows.oldest_ns == 0) rows.oldest_ns = now_ns;
    if (now_ns + interval_ns > rows.oldest_ns + rows.longest_ns) {
      WriteTable(table, &rows);
    }
  }
}

void RowBuffer::WriteAll() {
  for (auto& [table, rows] : tables_) WriteTable(table, &rows);
}

}  // namespace tdbg
