#include "sampler/row_sink.h"

#include <utility>

namespace tdbg {

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
  Rows& rows = tables_[table];
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
}

void RowBuffer::WriteDue(std::int64_t now_ns, std::int64_t interval_ns) {
  if (oldest_ns_ == 0) oldest_ns_ = now_ns;
  if (now_ns + interval_ns > oldest_ns_ + kLongestNs) WriteAll();
}

void RowBuffer::WriteAll() {
  for (auto& [table, rows] : tables_) WriteTable(table, &rows);
  oldest_ns_ = 0;
}

}  // namespace tdbg
