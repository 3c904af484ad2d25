// Reads the values of a tensor from its shard and decodes them.
//
// Implements docs/format.md, "tensor".
//
// Thread safety: none.
//
// Errors: every failed check names file, record and chunk; kLimitExceeded
// names the option that raises the limit.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "reader/shard_reader.h"
#include "reader/tables.h"

namespace tdbg {

// The bytes of a tensor.  `bytes` points into `owned`, or into a mapped shard
// that `keep_alive` holds.
struct TensorValue {
  TensorValue() = default;
  TensorValue(TensorValue&&) = default;  // A moved vector keeps its memory.
  TensorValue& operator=(TensorValue&&) = default;
  TensorValue(const TensorValue&) = delete;
  TensorValue& operator=(const TensorValue&) = delete;

  std::span<const std::byte> bytes;
  std::vector<std::byte> owned;
  std::shared_ptr<const void> keep_alive;
};

// The values of tables.tensors[i], which lies in `shard`.
Result<TensorValue> ReadTensorValue(const Tables& tables, std::size_t i,
                                    std::uint64_t max_bytes,
                                    ShardReader* shard);

}  // namespace tdbg
